"""A page about a run: the versions and machine, the ratios with their targets, and all problems."""

from __future__ import annotations

from typing import Any

#: Model, our variant, peer, and the largest acceptable ratio of times.
BARS = [
    ("mlp", "replayed", "torch eager", 0.3),
    ("mlp", "replayed", "torch compiled", 1.0),
    ("mlp", "eager", "torch eager", 1.0),
    ("gpt", "replayed", "torch eager", 1.0),
    ("gpt", "replayed", "torch compiled", 1.2),
    ("resnet", "replayed", "torch eager", 1.2),
]


def markdown(report: dict[str, Any]) -> str:
    """The page."""
    about, parts = report["about"], report["parts"]
    lines = [f"# {about['backend']} on {about['device']}", ""]
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items())
    lines += [f"{about['date']}, commit {about['commit'][:12]}, Python {about['python']}, {versions}.", ""]
    lines += [f"- {name}: {words}" for name, words in about["libraries"].items()]
    lines += [""] if about["libraries"] else []
    if about["small"]:
        lines += ["Everything was shrunk: this run tries the program, and its times mean nothing.", ""]
    for name, part in parts.items():
        lines += [f"## {name}", "", *(_speed(part) if name.startswith(("speed", "compiled")) else _plain(part)), ""]
        if part["problems"]:
            lines += [*(f"- **problem**: {' '.join(problem.split())}" for problem in part["problems"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _speed(part: dict[str, Any]) -> list[str]:
    lines = ["| model | step | ms |", "|---|---|---|"]
    models = {k: v for k, v in part.items() if isinstance(v, dict)}
    lines += [f"| {m} | {n} | {1e3 * t:.3f} |" for m, times in models.items() for n, t in times.items()]
    lines += ["", "| model | step | of the time of | ratio | bar |", "|---|---|---|---|---|"]
    for model, ours, peer, bar in BARS:
        times = models.get(model, {})
        if ours in times and peer in times:
            lines.append(f"| {model} | {ours} | {peer} | {times[ours] / times[peer]:.2f} | {bar:.1f} |")
    return lines


def _plain(part: dict[str, Any]) -> list[str]:
    return [f"- {k}: {_shown(v)}" for k, v in part.items() if k not in ("problems", "complete", "seconds")]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{k} {_shown(v)}" for k, v in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
