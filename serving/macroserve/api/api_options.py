"""``spec.api``: vLLM's options for the OpenAI endpoint, under their own names.

The tables cover every option of ``vllm serve`` that is not an engine argument: each is a field of
    ``ApiOptions`` or decided by Macroserve. A test compares them with the installed vLLM.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, ValidationInfo, field_validator

from macroserve.api.json_value import json_value
from macroserve.api.part import ManifestPart
from macroserve.api.units import parse_seconds
from macroserve.api.validation_errors import must_be, nearest
from macroserve.api.vllm_names import REASONING_PARSERS, TOOL_CALL_PARSERS

NOT_EMPTY = "a non-empty string"
DNS_NAME = "a DNS name: up to 253 of a-z, 0-9, - and ., a letter or digit at either end"

DECIDED = {
    "api_key": "spec.ingress.apiKeysSecret",
    "enable_auto_tool_choice": "spec.api.toolCallParser",
    "lora_modules": "spec.model.adapters",
}
"""Options that another field decides."""

FIXED = {
    "trust_request_chat_template": "a client must not choose the program that renders prompts",
    "trust_request_mm_kwargs": "a client must not choose how images are processed",
    "tool_parser_plugin": "an ingress loads no third-party code",
    "middleware": "an ingress loads no third-party code",
    "tool_server": "an ingress calls no tools",
    "max_log_len": "requests are not logged",
    "enable_log_outputs": "requests are not logged",
    "enable_log_deltas": "requests are not logged",
    "log_error_stack": "requests are not logged",
    "uvicorn_log_level": "Macroserve defines the log format",
    "disable_uvicorn_access_log": "Macroserve defines the log format",
    "disable_access_log_for_endpoints": "Macroserve defines the log format",
    "enable_per_request_metrics": "timing is in the metrics at /metrics",
    "enable_server_load_tracking": "the load is in the metrics at /metrics",
    "enable_tokenizer_info_endpoint": "the endpoint is not served",
    "cohere_is_reasoning_model": "the endpoint is not served",
    "cohere_format": "the endpoint is not served",
    "tokens_only": "ingresses serve text and instances serve tokens",
    "enable_scale_out": "ingresses serve text and instances serve tokens",
    "host": "the ingress sets its own address",
    "port": "the ingress sets its own address",
    "uds": "the ingress sets its own address",
    "root_path": "the ingress sets its own address",
    "grpc_port": "gRPC is not served",
    "data_parallel_supervisor_port": "Macroserve monitors its instances",
    "dp_supervisor_probe_interval_s": "Macroserve monitors its instances",
    "dp_supervisor_probe_timeout_s": "Macroserve monitors its instances",
    "dp_supervisor_probe_failure_threshold": "Macroserve monitors its instances",
    "ssl_keyfile": "TLS ends before the ingress",
    "ssl_certfile": "TLS ends before the ingress",
    "ssl_ca_certs": "TLS ends before the ingress",
    "enable_ssl_refresh": "TLS ends before the ingress",
    "ssl_cert_reqs": "TLS ends before the ingress",
    "ssl_ciphers": "TLS ends before the ingress",
    "h11_max_incomplete_event_size": "the ingress has its own limits",
    "h11_max_header_count": "the ingress has its own limits",
    "disable_fastapi_docs": "no API documentation is served",
    "enable_offline_docs": "no API documentation is served",
    "reasoning_effort_map": "vLLM has it since 0.33 only; a template reads its efforts itself",
    "enable_flash_late_interaction": "only text generation is served",
}
"""Options that cannot be set, with the reason."""


JINJA = "a Jinja template, a text with {{ or {%"


def is_template(text: str) -> bool:
    """Return whether vLLM reads the text as a template; it reads other texts as paths."""
    return "{{" in text or "{%" in text


def _template(value: object) -> object:
    if value is None or (isinstance(value, str) and is_template(value)):
        return value
    raise must_be(JINJA)


def _known(names: tuple[str, ...], what: str) -> PlainValidator:
    def check(value: object) -> object:
        if value is None or value in names:
            return value
        raise must_be(f"a {what} of vLLM{nearest(str(value), names)}")

    return PlainValidator(check)


DnsName = Annotated[
    str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$", description=DNS_NAME)
]
Texts = list[Annotated[str, Field(min_length=1)]]
Seconds = Annotated[float, BeforeValidator(lambda value: parse_seconds(str(value)))]


class ConfigMapKey(ManifestPart):
    """A key of a ConfigMap in the MacroInstance's namespace."""

    name: DnsName
    key: str = Field(
        default="template",
        pattern=r"^[-._a-zA-Z0-9]{1,253}$",
        description="up to 253 of letters, digits, -, _ and .",
    )


class ApiOptions(ManifestPart):
    """Options of the OpenAI endpoint; at most one ``chat_template*`` source is set."""

    served_names: Texts = Field(default_factory=list, description="a list of names")
    tool_call_parser: Annotated[str | None, _known(TOOL_CALL_PARSERS, "tool call parser")] = None
    exclude_tools_when_tool_choice_none: bool = Field(default=False, description="true or false")
    tool_strict_level: Literal["auto", "function", "parameter"] = Field(
        default="auto", description="auto, function or parameter"
    )
    reasoning_parser: Annotated[str | None, _known(REASONING_PARSERS, "reasoning parser")] = None
    chat_template: Annotated[str | None, PlainValidator(_template)] = None
    chat_template_file: str | None = Field(default=None, min_length=1, description=NOT_EMPTY)
    chat_template_config_map: ConfigMapKey | None = None
    chat_template_content_format: Literal["auto", "string", "openai"] = Field(
        default="auto", description="auto, string or openai"
    )
    default_chat_template_kwargs: Annotated[
        dict[str, Any], BeforeValidator(lambda value: json_value(value))
    ] = Field(default_factory=dict, description="a mapping of template arguments")
    response_role: str = Field(default="assistant", min_length=1, description=NOT_EMPTY)
    return_tokens_as_token_ids: bool = Field(default=False, description="true or false")
    enable_prompt_tokens_details: bool = Field(default=True, description="true or false")
    enable_force_include_usage: bool = Field(default=False, description="true or false")
    enable_request_id_headers: bool = Field(default=False, description="true or false")
    sse_keep_alive_interval: Seconds = Field(
        default=0.0, description="a duration such as 0s, 15s or 1m30s"
    )
    anthropic_disabled_thinking_effort: Literal["auto", "none", "low"] = Field(
        default="auto", description="auto, none or low"
    )
    fingerprint_mode: Literal["full", "hash", "custom", "none"] = Field(
        default="full", description="full, hash, custom or none"
    )
    fingerprint_value: str | None = Field(default=None, min_length=1, description=NOT_EMPTY)
    allowed_origins: Texts = Field(default_factory=list, description="a list of origins")
    allowed_methods: Texts = Field(
        default_factory=lambda: ["*"], description="a list of HTTP methods"
    )
    allowed_headers: Texts = Field(
        default_factory=lambda: ["*"], description="a list of HTTP headers"
    )
    allow_credentials: bool = Field(default=False, description="true or false")

    @field_validator("chat_template_file", "chat_template_config_map")
    @classmethod
    def _one_template(cls, value: object, info: ValidationInfo) -> object:
        given = ("chat_template", "chat_template_file")
        if value is not None and any(info.data.get(name) is not None for name in given):
            raise must_be("left out where another chat template is given")
        return value

    def frontend_options(self) -> dict[str, Any]:
        """Return vLLM's options by Python name, without the template's text and the model names."""
        apart = {"served_names", "chat_template", "chat_template_file", "chat_template_config_map"}
        options = self.model_dump(exclude=apart, exclude_none=True)
        return {**options, "enable_auto_tool_choice": self.tool_call_parser is not None}
