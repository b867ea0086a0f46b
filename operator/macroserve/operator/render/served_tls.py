"""Options for the TLS of served pods, and for the issuer of their certificates."""

import msgspec


class ServedTls(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Options under ``servedTls`` of the chart."""

    enabled: bool = False
    issuer_ref: dict[str, str] = msgspec.field(default_factory=dict)
    """cert-manager's issuer, ``{name, kind, group}``; if empty, the operator signs."""

    @staticmethod
    def from_json(text: str) -> "ServedTls":
        """Parse the options. Raise ValueError."""
        return msgspec.json.decode(text, type=ServedTls)

    @property
    def issued(self) -> bool:
        """Return whether cert-manager issues the certificates."""
        return self.enabled and bool(self.issuer_ref)

    @property
    def scheme(self) -> str:
        return "https" if self.enabled else "http"


PLAIN = ServedTls()
