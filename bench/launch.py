"""Print how what is said of launches agrees with what happened: published outcomes, and start-up logs by row."""

from __future__ import annotations

import csv
from importlib.resources import files
from statistics import median

from sim.launch.agreement import judge, logs, outcomes


def main() -> None:
    print("| launch | expected | said | agrees |\n|---|---|---|---|")
    verdicts = [judge(outcome) for outcome in outcomes()]
    words = {True: "yes", False: "NO", None: "no answer"}
    for v in verdicts:
        print(f"| {v.id} | {v.expected} | {v.said} | {words[v.agrees]} |")
    counts = {words[key]: sum(v.agrees is key for v in verdicts) for key in words}
    print(f"\n{len(verdicts)} launches: {counts}\n")
    text = files("sim").joinpath("data", "truth", "memory.csv").read_text("utf-8")
    rows = {row["row_id"]: row for row in csv.DictReader(text.splitlines())}
    print("| row | trust | policy | measured | predicted | error |\n|---|---|---|---|---|---|")
    errors = []
    for log in logs():
        row, room = rows[log.row], log.predict()
        measured = int(row["kv_tokens"])
        errors.append(abs(room.tokens / measured - 1))
        error = f"{room.tokens / measured - 1:+.1%}"
        policy = f"{room.engine} {room.version}"
        print(f"| {log.row} | {row['trust']} | {policy} | {measured:,} | {room.tokens:,} | {error} |")
    print(f"\nmedian {median(errors):.1%}, worst {max(errors):.1%} of {len(errors)} rows")


if __name__ == "__main__":
    main()
