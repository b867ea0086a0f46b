"""Log lines of all components: an event, a short past-tense phrase, and its fields.

The records are the standard library's, so that lines of other libraries have the same form.
"""

import logging

import structlog

_FOREIGN_FIELDS = frozenset(
    {"_ray_timestamp_ns", "k8s_skip", "message", "settings", "vllm_process_name"}
)


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module, which takes fields as keyword arguments."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def formatter(readable: bool, colors: bool = False) -> logging.Formatter:
    """Return the formatter of all lines: `event key=value` for people, or JSON objects."""
    # Values of variables in tracebacks would include prompts and keys.
    traceback = structlog.dev.plain_traceback
    render = (
        [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=traceback)]
        if readable
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            _without_foreign_fields,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
    )


def _without_foreign_fields(
    logger: object, method: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    """Remove the fields that Ray, vLLM, kopf and other formatters add to each record."""
    return {name: value for name, value in event.items() if name not in _FOREIGN_FIELDS}
