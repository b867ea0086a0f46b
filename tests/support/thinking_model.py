"""The tiny model with the tokens of reasoning, for reasoning parsers.

It avoids white space, of which a grammar may allow any amount.
"""

import json
import shutil
from pathlib import Path

from safetensors.numpy import load_file, save_file

from macroserve.local.tiny_model import ensure_tiny_model

THINK, END_THINK = 2046, 2047
"""The tokens ``<think>`` and ``</think>``, which replace the two rarest ones."""


def thinking_model(folder: Path) -> Path:
    """A checkpoint in ``folder``."""
    shutil.copytree(ensure_tiny_model(), folder, dirs_exist_ok=True)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    for number, text in ((THINK, "<think>"), (END_THINK, "</think>")):
        rare = next(name for name, id_ in vocabulary.items() if id_ == number)
        tokenizer["model"]["merges"] = merges = [m for m in merges if "".join(m) != rare]
        del vocabulary[rare]
        vocabulary[text] = number
        tokenizer["added_tokens"].append(
            {
                "id": number,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": False,
            }
        )
    path.write_text(json.dumps(tokenizer))
    weights = load_file(folder / "model.safetensors")
    # Spaces, line ends and tabs in a byte-level tokenizer.
    blank = [number for text, number in vocabulary.items() if not text.strip("ĠĊĉč")]
    weights["lm_head.weight"][blank] = 0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
