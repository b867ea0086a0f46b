"""Token counts by a model's tokenizer."""

import pytest

from macroserve.cli.load_options import token_counter

TOKENIZER = """{"version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
"truncation": null, "padding": null, "decoder": null, "pre_tokenizer": {"type": "Whitespace"},
"model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "one": 1}, "unk_token": "[UNK]"}}"""


def test_counter_counts_what_the_tokenizer_makes_of_a_text(tmp_path):
    (tmp_path / "tokenizer.json").write_text(TOKENIZER)
    count = token_counter(tmp_path)
    assert [count(text) for text in ("", "one", "one two one")] == [0, 1, 3]


@pytest.mark.parametrize("text", [None, "", "{}"])
def test_counter_of_a_folder_without_a_tokenizer_raises_a_sentence(tmp_path, text):
    if text is not None:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=r"--tokenizer: .*tokenizer\.json"):
        token_counter(tmp_path)
