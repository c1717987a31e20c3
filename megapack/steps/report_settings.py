"""The settings of a dataset that a reader asks for first, from the job that its manifest recorded.

What is trained, in which format, and what happened to long documents. How fast it was made, and by
which engine, is not among them.
"""

from collections.abc import Mapping
from typing import Any

from megapack.conversation.config import LossPart
from megapack.packing.config import BlendUnit


def settings_line(settings: Mapping[str, Any]) -> str:
    """One line on what is trained and how it was packed; "" when the job was not recorded.

    Args:
        settings: a job's JSON.
    """
    tokenize, pack = settings.get("tokenize", {}), settings.get("pack", {})
    told = [_formats(settings)]
    told += [_said(name, tokenize.get(name)) for name in ("loss_on", "loss_turns", "loss_parts")]
    told += [_said("row_length", pack.get("row_length"))]
    told += [_said("long_documents", tokenize.get("long_documents"))]
    told += [_blend(pack.get("blend"))]
    line = "; ".join(one for one in told if one)
    return f"settings: {line}" if line else ""


def asked_shares(settings: Mapping[str, Any]) -> tuple[BlendUnit | None, dict[str, float]]:
    """What a blend asked for, by source name.

    Args:
        settings: a job's JSON.

    Returns:
        The unit, None without a blend; by source its epochs, or its share of 1 in documents or
        tokens.
    """
    blend = settings.get("pack", {}).get("blend")
    if not blend:
        return None, {}
    unit = BlendUnit(blend["unit"])
    weights = {
        one.get("name") or one["uri"]: float(one.get("weight", 1.0))
        for one in settings.get("sources", ())
    }
    total = 1.0 if unit is BlendUnit.EPOCHS else sum(weights.values())
    return unit, {name: weight / total for name, weight in weights.items()}


def _formats(settings: Mapping[str, Any]) -> str:
    usual = settings.get("tokenize", {}).get("format")
    if usual is None:
        return ""
    found = sorted({one.get("format") or usual for one in settings.get("sources", ())} or {usual})
    return _said("format" if len(found) == 1 else "formats", found)


def _said(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        whole = name == "loss_parts" and set(value) == set(LossPart)
        return f"{name} {'all' if whole else ', '.join(map(str, value))}"
    return f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}"


def _blend(blend: Mapping[str, Any] | None) -> str:
    if not blend:
        return ""
    total = "" if blend.get("total") is None else f", total {blend['total']}"
    return f"blend by {blend['unit']}{total}"
