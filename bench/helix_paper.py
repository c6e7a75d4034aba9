"""The Helix paper's claims (arXiv 2507.07120) from the shipped studies: the paper's value and ours, as Markdown.

Run the studies first:
    shardwise study helix_llama_405b --out results/llama
    shardwise study helix_deepseek_r1 --out results/r1
    python bench/helix_paper.py results/llama results/r1
"""

from __future__ import annotations

import sys

import numpy as np

from sim.study.results import Results, front

X, Y = "tokens_per_s_per_user", "output_tokens_per_s_per_gpu"


class Curve:
    """A Pareto front as a step function: the best throughput at an interactivity or more."""

    def __init__(self, results: Results, chosen: np.ndarray):
        x, y = results.column(X)[chosen], results.column(Y)[chosen]
        at = front(x, y)
        self.x, self.y = x[at], y[at]  # falling x, rising y
        self.batch = results.column("batch")[chosen][at]
        self.layout = results.column("layout")[chosen][at]

    def throughput(self, x: float) -> float:
        """Best output tokens/s/GPU of what is at least as interactive as ``x``."""
        able = self.x >= x
        return float(self.y[able].max()) if able.any() else 0.0

    def interactivity(self, y: float) -> float:
        """Best tokens/s/user of what gives at least ``y`` tokens/s/GPU."""
        able = self.y >= y
        return float(self.x[able].max()) if able.any() else 0.0


def users(results: Results, chosen: np.ndarray, x: float) -> int:
    """Most sequences together of what is at least as interactive as ``x``."""
    able = chosen & (results.column(X) >= x)
    return int(results.column("batch")[able].max()) if able.any() else 0


def claims(folder: str) -> dict[str, str]:
    results = Results.open(folder)
    strategy, layout = results.column("strategy"), results.column("layout")
    helix = strategy == "helix"
    off = np.array([name.endswith("-no_hopb") for name in layout])
    base, best = Curve(results, np.flatnonzero(~helix)), Curve(results, np.flatnonzero(helix & ~off))
    without = Curve(results, np.flatnonzero(helix & off))
    grid = base.x[base.x >= 0]
    ratio = [best.throughput(x) / base.throughput(x) for x in grid]
    crowd = [users(results, helix & ~off, x) / users(results, ~helix, x) for x in grid]
    at = best.y[(best.y >= best.y[0]) & (best.y <= without.y[-1])]
    loss = [1 - without.interactivity(y) / best.interactivity(y) for y in at]
    return {
        "most tokens/s/user, baseline": f"{base.x[0]:.1f} ({base.layout[0]})",
        "most tokens/s/user, Helix": f"{best.x[0]:.1f} ({best.layout[0]})",
        "interactivity, Helix over baseline": f"{best.x[0] / base.x[0]:.2f}x",
        "tokens/s/GPU at equal interactivity, largest ratio": f"{max(ratio):.1f}x",
        "tokens/s/GPU at equal interactivity, at the baseline's best": f"{ratio[0]:.1f}x",
        "users at equal interactivity, largest ratio": f"{max(crowd):.1f}x",
        "HOP-B off, largest loss of tokens/s/user at equal tokens/s/GPU": f"{100 * max(loss):.1f} %",
        "smallest ratio of the fronts (1 or more: Helix is never below)": f"{min(ratio):.3f}",
        "points that fit": f"{len(results):,}",
    }


def main() -> None:
    columns = [claims(folder) for folder in sys.argv[1:]]
    print("| | " + " | ".join(sys.argv[1:]) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")


if __name__ == "__main__":
    main()
