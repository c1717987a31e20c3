import pytest

from megapack.errors import ContractError, RankError
from megapack.records.digest import canonical_json, step_address
from megapack.records.drops import Drop, DropLedger, DropReason, check_conservation


def test_ledger_counts_by_reason_and_round_trips():
    drops = [
        Drop(reason=DropReason.EMPTY, detail="x"),
        Drop(reason=DropReason.TOO_LONG, detail="y", tokens=7),
        Drop(reason=DropReason.TOO_LONG, detail="z", tokens=5),
    ]
    ledger = DropLedger.of(drops)
    assert ledger.as_json() == {
        "documents": {"empty": 1, "too_long": 2},
        "tokens": {"too_long": 12},
    }
    assert DropLedger.from_json(ledger.as_json()) == ledger
    assert ledger.plus(ledger).total == 6


def test_check_conservation_prints_the_sum():
    ledger = DropLedger.of([Drop(reason=DropReason.EMPTY, detail="")])
    check_conservation(documents_in=3, placed=2, drops=ledger, where="pack")
    with pytest.raises(ContractError, match=r"4 documents in, but 2 placed \+ 1 dropped = 3"):
        check_conservation(documents_in=4, placed=2, drops=ledger, where="pack")


def test_step_address_ignores_key_order_and_follows_semantics():
    assert step_address("pack", 1, {"a": 1, "b": 2}) == step_address("pack", 1, {"b": 2, "a": 1})
    assert step_address("pack", 1, {}) != step_address("pack", 2, {})


def test_canonical_json_refuses_nan():
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))


def test_rank_error_survives_pickling():
    import pickle

    error = RankError("rank 3 died", rank=3, exit_code=-9, tail=("a", "b"))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.rank, copy.exit_code, copy.tail) == ("rank 3 died", 3, -9, ("a", "b"))
