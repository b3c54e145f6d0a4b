"""One line a measurement, while the run goes on."""

from __future__ import annotations

from bench.figures import Sample


def show(position: int, total: int, sample: Sample, took_s: float) -> None:
    """Prints what was just measured."""
    noise = " (disturbed)" if sample.is_noisy else ""
    print(
        f"[{position:3}/{total}] round {sample.round + 1}  {sample.test:12}  {sample.peer:20}"
        f"  {_brief(sample)}{noise}  [{took_s:.0f} s]",
        flush=True,
    )


def _brief(sample: Sample) -> str:
    figures = sample.figures
    if sample.error:
        return "failed: " + sample.error.splitlines()[-1][:120]
    if sample.test.endswith("latency"):
        return f"p50 {figures['p50_ms']:.2f} ms, p99 {figures['p99_ms']:.2f} ms, {figures['sent']:.2f} commands sent"
    if sample.test == "pel":
        return f"{figures['rate_small']:,.0f}/s and {figures['rate_large']:,.0f}/s"
    if sample.test == "queue-memory":
        return f"{figures['memory_ratio']:.2f} bytes a byte"
    return f"{figures['rate']:,.0f}/s"
