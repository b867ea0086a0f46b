"""The executor without an engine."""

import pytest

from macroserve.rehearsal.executor import RehearsalExecutor


def test_method_of_a_worker_without_an_answer_is_refused() -> None:
    executor = object.__new__(RehearsalExecutor)
    assert executor.collective_rpc("list_loras") == [set()]
    with pytest.raises(NotImplementedError, match="no answer to save_sharded_state"):
        executor.collective_rpc("save_sharded_state")
