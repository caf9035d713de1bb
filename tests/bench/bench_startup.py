"""Start-up cost beyond the bare interpreter: `import kvlayout` and `kvlayout --help`. Prints medians; asserts nothing.

python tests/bench/bench_startup.py [REPEATS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

PROGRAMS = {
    "bare interpreter": ["-c", "pass"],
    "import kvlayout": ["-c", "import kvlayout"],
    "kvlayout --help": ["-m", "kvlayout", "--help"],
}


def main(repeats: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(repeats + 1):  # interleaved, so that a slow moment hits all of them; the first round warms the disk
        for name, arguments in PROGRAMS.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
            times[name].append(1e3 * (time.perf_counter() - begin))
    medians = {name: statistics.median(taken[1:]) for name, taken in times.items()}
    bare = medians["bare interpreter"]
    for name, median in medians.items():
        print(f"{name:18} {median:6.1f} ms, {median - bare:+6.1f} ms beyond the bare interpreter (median of {repeats})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
