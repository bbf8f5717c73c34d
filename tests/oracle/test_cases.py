"""Every public bug report of ``tests/data/cases.jsonl`` has a test: in this folder, or at the place named here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import BY_ID, CASES, TOYS

ROOT = Path(__file__).resolve().parents[2]

ELSEWHERE = {
    "A09": "tests/oracle/test_legality_backends.py",
    "A40": "tests/oracle/test_legality_bytes.py",
    "A47": "tests/server/test_frontend.py::test_choice_after_a_thought",
    "A49": "tests/oracle/test_legality_backends.py",
    "B03": "tests/server/test_rows.py::test_rows_of_a_real_model",
    "B05": "tests/server/test_equality.py::test_any_length_of_prompt",
    "B06": "tests/server/test_neighbours.py::test_same_choices_under_load_and_chunked_prefill",
    "B07": "tests/server/test_requests.py::test_evidence_is_strict_json_and_adds_up",
    "C01": "tests/unit/runtime/test_refusals.py::test_models_are_refused_by_name",
    "C02": "tests/unit/runtime/test_refusals.py::test_models_are_refused_by_name",
    "C04": "tests/unit/runtime/test_flashinfer_masks.py::test_masks_of_another_shape_are_refused",
    "C05": "tests/unit/runtime/test_attention_cpu.py::test_any_ratio_and_size_of_heads",
    "C06": "tests/server/test_neighbours.py::test_nothing_leaks",
    "C07": "tests/server/test_neighbours.py::test_unrelated_requests_are_byte_identical",
    "C09": "tests/unit/runtime/test_refusals.py::test_rounded_caches_are_refused",
    "C10": "tests/unit/runtime/test_flashinfer_masks.py::test_a_parent_behind_its_child_is_refused",
    "C11": "tests/server/test_neighbours.py::test_losers_stay_out_of_the_radix_cache",
    "C12": "tests/unit/runtime/test_refusals.py::test_a_recurrent_model_is_known_by_its_type",
    "C13": "tests/unit/runtime/test_flashinfer_masks.py::test_sizes_beyond_32_bits_are_counted_and_never_built",
    "C14": "tests/server/test_neighbours.py::test_same_choices_under_load_and_chunked_prefill",
    "D01": "tests/server/test_forks.py::test_branches_of_a_fork_prefill_their_prompt_once",
    "D02": "tests/server/test_forks.py::test_samples_share_their_prompt_and_report_it",
    "D03": "tests/server/test_forks.py::test_every_sample_is_there_once",
    "D04": "tests/server/test_branches.py::test_outputs_are_equal_under_all_policies_with_aborts_mixed_in",
    "D05": "tests/server/test_branches.py::test_aborting_the_parent_ends_its_branches",
    "D06": "tests/server/test_forks.py::test_groups_that_do_not_fit_together_finish",
    "D08": "tests/server/test_forks.py::test_groups_that_do_not_fit_together_finish",
    "D09": "tests/server/test_forks.py::test_one_branch_fails_alone",
    "D11": "tests/server/test_forks.py::test_grammars_and_seeds_of_samples_are_their_own",
    "D12": "tests/server/test_forks.py::test_grammars_and_seeds_of_samples_are_their_own",
    "D13": "tests/server/test_forks.py::test_forks_of_any_shape",
    "D14": "tests/unit/branches/test_policies.py::test_bounded_wait_with_a_broken_predictor",
    "E03": "tests/server/test_forks.py::test_a_fault_costs_its_own_request",
    "E05": "tests/server/test_forks.py::test_a_client_that_leaves_during_compilation",
    "E06": "tests/unit/branches/test_ranks.py::test_ranks_take_the_decision_of_the_first",
    "E09": "tests/unit/runtime/test_refusals.py::test_server_arguments_are_refused_by_name",
}
HERE = [
    *("A04", "A08", "A15", "A16", "A18", "A19", "A20", "A22", "A24", "A25", "A26", "A27", "A28", "A29", "A30", "A37"),
    *("A45", "A46", "B02", "B08", "B10", "E01", "E02", "E07", "E10", "E11"),
]


def test_every_case_has_one_place() -> None:
    assert len(CASES) == len(BY_ID) == 83
    assert sorted([*ELSEWHERE, *TOYS, *HERE]) == sorted(BY_ID)


@pytest.mark.parametrize("name", HERE)
def test_cases_of_this_folder_are_named_in_it(name: str) -> None:
    text = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_case_*.py"))
    assert f'BY_ID["{name}"]' in text or f'items("{name}")' in text


@pytest.mark.parametrize(("name", "place"), ELSEWHERE.items())
def test_places_exist(name: str, place: str) -> None:
    path, _, function = place.partition("::")
    text = (ROOT / path).read_text("utf-8")
    assert f"def {function or 'test'}" in text
