"""Count tokens with the tokenizer of a model."""

from collections.abc import Callable
from pathlib import Path


def token_counter(folder: Path) -> Callable[[str], int]:
    """Return a counter of the tokens that a model's folder makes of a text.

    Raises ValueError for a folder without a tokenizer.json that can be read, and where the package
    ``tokenizers`` is missing.
    """
    try:
        # Late: it comes with an extra.
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError("--tokenizer needs tokenizers: pip install 'macroserve[ray]'") from None
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--tokenizer: {path}: {error.strerror}") from None
    except Exception:  # The package raises nothing narrower.
        raise ValueError(f"--tokenizer: {path} is not a tokenizer") from None
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
