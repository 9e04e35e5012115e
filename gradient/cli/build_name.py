"""What a person may call a build."""

from __future__ import annotations

from typing import Any

from gradient.cli.context import Context
from gradient.cli.failures import Failure


def find_build(context: Context, name: str) -> int:
    """The id of the shared build that `name` means; raises Failure, or what the rules refuse.

    Besides what `gradient.find_build` understands: `attribute@evaluation`, and
    `attribute@project/task` for the task's latest evaluation.
    """
    attribute, at, place = name.rpartition("@")
    if not at:
        number: int = context.value("select gradient.find_build(%s)", [name])
        return number
    progress = context.value(
        "select gradient.evaluation_progress(%s)", [_evaluation(context, place)]
    )
    points: list[dict[str, Any]] = progress["entry_points"]
    for point in points:
        if point["attribute"] == attribute:
            found: int = point["build"]
            return found
    known = ", ".join(point["attribute"] for point in points[:5])
    raise Failure(
        f"evaluation {progress['evaluation']} has no entry point {attribute}",
        detail=f"It has {known}{', …' if len(points) > 5 else ''}." if known else "It has none.",
        hint=f"gradient eval show {progress['evaluation']}",
    )


def _evaluation(context: Context, place: str) -> int:
    if place.isdecimal():
        return int(place)
    project, _, task = place.partition("/")
    latest = context.value(
        "select latest_evaluation from gradient.task_overview where project = %s and name = %s",
        [project, task],
    )
    if latest is None:
        raise Failure(
            f"{place} is neither an evaluation's id nor a task that has one",
            hint="gradient eval list",
        )
    return int(latest)
