"""vLLM's flags become the manifest's field names."""

import pytest

from macroserve.api.option_names import in_manifest_words, place_of


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (
            "it requires --enable-auto-tool-choice and --tool-call-parser to be set",
            "it requires spec.api.toolCallParser to be set",
        ),
        (
            "Please set --reasoning-parser and/or --reasoning-config to use thinking_token_budget.",
            "Please set spec.api.reasoningParser and/or spec.engine.args.reasoningConfig to use "
            "thinking_token_budget.",
        ),
        (
            "You must set `--enable-prompt-embeds` to input `prompt_embeds`.",
            "You must set spec.engine.args.enablePromptEmbeds to input `prompt_embeds`.",
        ),
        (
            "not on a server with --tokens-only.",
            "not on a server with --tokens-only (which cannot be set here: ingresses serve text "
            "and instances serve tokens).",
        ),
        (
            "decrease --max-model-len or --kv-cache-memory-bytes",
            "decrease spec.model.maxModelLen or spec.engine.kvCacheMemory",
        ),
        ("there is no --such-flag", "there is no --such-flag"),
        ("a dash -- and a word", "a dash -- and a word"),
    ],
)
def test_vllm_message_with_flags_names_fields_instead(said: str, meant: str) -> None:
    assert in_manifest_words(said) == meant


@pytest.mark.parametrize(
    ("said", "field"),
    [
        (
            "As of transformers v4.44, default chat template is no longer allowed, so you must "
            "provide a chat template if the tokenizer does not define one.",
            "spec.api.chatTemplate",
        ),
        (
            "Chat template is passed with request, but --trust-request-chat-template is not set. "
            "Refused request with untrusted chat template.",
            "spec.api.chatTemplate",
        ),
    ],
)
def test_vllm_message_about_a_template_names_only_its_field(said: str, field: str) -> None:
    meant = in_manifest_words(said)
    assert field in meant and "--" not in meant and "v4.44" not in meant


@pytest.mark.parametrize(
    ("flag", "place"),
    [
        ("--served-model-name", "spec.model.servedName"),
        ("--no-enable-prefix-caching", "spec.engine.prefixCaching"),
        ("--no-enable-log-requests", None),
        ("--max-logprobs", "spec.engine.args.maxLogprobs"),
        ("--such-flag", None),
    ],
)
def test_place_of_a_flag_is_its_one_field(flag: str, place: str | None) -> None:
    found = place_of(flag)
    if flag == "--no-enable-log-requests":
        assert found is not None and "cannot be set here" in found
    else:
        assert found == place
