"""A check of chat templates that does not need vLLM."""


def problem_of(template: str) -> str | None:
    """Return why the template does not compile, as ``line 3: ...``; None if it does."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils import chat_template_utils

    try:
        # With the same tags, filters and tests as for rendering.
        chat_template_utils._compile_jinja_template(template)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except SyntaxError as error:
        return str(error.msg)
    except RecursionError:
        return "it is nested too deeply"
    return None
