"""A chat template is compiled without vLLM, before any process is started."""


def problem_of(template: str) -> str | None:
    """Return where and why the template does not compile, as ``line 3: ...``; None if it does."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils import chat_template_utils

    try:
        # With the tags, filters and tests that templates are rendered with.
        chat_template_utils._compile_jinja_template(template)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except SyntaxError as error:
        return str(error.msg)
    except RecursionError:
        return "it is nested too deeply"
    return None
