"""How long a process with connected queue pairs is suspended and resumed by softhca_suspend_seated() and
softhca_resume(), without anything in between."""
import os

import rig

PROGRAM = os.path.join(rig.BUILD, "tests", "bench", "suspend")
COUNTS = [1, 100, 1000]
WAYS = {"within the host": [], "on the wire": ["--wire"]}
MOST = {100: 50}    # ms, suspending and resuming together, the median


class Part:
    def __init__(self, runs, say):
        self.times, self.say, self.rows, self.failed = 20 * runs, say, [], 0

    def run(self):
        for way, options in WAYS.items():
            for count in COUNTS:
                out = rig.Proc(rig.Side(), [PROGRAM, count, self.times], options).done(60)
                self.rows.append((way, count, *map(float, out.split())))
        self.say("  suspend done")

    def print(self):
        self.say()
        self.say(f"Suspended and resumed, ms; the median of {self.times} times")
        self.say(f"{'':18}{'queue pairs':>12}{'suspend':>10}{'resume':>10}{'both':>10}{'most':>10}")
        for way, count, *ms in self.rows:
            most = MOST.get(count)
            late = f"  MORE THAN {most}" if most and ms[2] > most else ""
            self.failed += bool(late)
            self.say(f"{way:18}{count:12}" + "".join(f"{m:10.2f}" for m in ms) + late)

    def save(self):
        names = "way", "queue_pairs", "suspend_ms", "resume_ms", "both_ms", "most_ms"
        return [dict(zip(names, row)) for row in self.rows]
