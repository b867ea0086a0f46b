"""Whether a chat template can be used, without vLLM: asked before anything is started."""


def problem_of(template: str) -> str | None:
    """Where and why the template cannot be compiled, as ``line 3: ...``; None where it can."""
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
