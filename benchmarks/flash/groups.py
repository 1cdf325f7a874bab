"""The groups of arrays of FLASH's I/O alone, with the most processes and servers."""

from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure
from benchmarks.flash.__main__ import SCALES, Job
from benchmarks.flash.arrays import FORMS
from benchmarks.flash.points import CONTENDERS
from benchmarks.testbed import why_not


def measure(setting: Setting) -> Outcome:
    if lacking := why_not():
        return Outcome([Figure("checkpoints of FLASH", skipped=lacking)])
    own = [contender for contender in CONTENDERS if contender.way in FORMS]
    job = Job(setting, SCALES[setting.size], own)
    servers, processes = job.most
    job.on_pools(servers, [processes], [processes])
    return job.outcome()


if __name__ == "__main__":
    main("flash.groups", measure)
