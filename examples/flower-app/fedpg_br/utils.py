"""fedpg_br: results as text."""

from fedpg import Records

AT = (100, 250, 500, 1000, 2000)


def summary(records: Records) -> str:
    """Return at some numbers of trajectories, and whom the filter accepted."""
    honest, byzantine = (accepted.mean() for accepted in records.accepted())
    reached = int(records.trajectories[-1])
    points = [*(at for at in AT if at < reached), reached]
    row = ", ".join(f"{records.return_at(at):.0f} at {at}" for at in points)
    count = records.config.byzantine
    return (
        f"greedy return {row} trajectories; accepted per round: "
        f"{honest:.1f} of {records.config.agents - count} honest, "
        f"{byzantine:.1f} of {count} Byzantine"
    )
