"""The choice whether served pods talk over TLS, and who signs their certificates."""

import msgspec


class ServedTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The chart's ``servedTls``.

    issuer_ref: cert-manager's issuer, ``{name, kind, group}``; empty: the operator signs.
    """

    enabled: bool = False
    issuer_ref: dict[str, str] = msgspec.field(default_factory=dict)

    @staticmethod
    def from_json(text: str) -> "ServedTls":
        """Raises ValueError."""
        return msgspec.json.decode(text, type=ServedTls)

    @property
    def issued(self) -> bool:
        """Whether cert-manager makes the certificates."""
        return self.enabled and bool(self.issuer_ref)

    @property
    def scheme(self) -> str:
        return "https" if self.enabled else "http"


PLAIN = ServedTls()
