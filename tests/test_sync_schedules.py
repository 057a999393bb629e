"""Whatever happens to devices and files, they end equal: nothing is lost, nothing erased is back.

`python -m bench.sync --schedules N` runs more of them.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from bench.sync import World, schedule

# Not st.randoms: what is drawn then depends on the sizes of sealed files, which differ each time.
DICE = st.integers(0, 2**32 - 1).map(Random)
WHO = st.integers(0, 4)


@pytest.mark.parametrize("seed", range(8))
def test_a_schedule_ends_with_equal_stores(seed: int) -> None:
    schedule(seed)


class Devices(RuleBasedStateMachine):
    """Two to five devices; `bench.sync.World` says what may happen, and how it must end."""

    @initialize(devices=st.integers(2, 5), one_folder=st.booleans(), dice=DICE)
    def begin(self, devices: int, one_folder: bool, dice: Random) -> None:
        self.world = World(devices, one_folder=one_folder, random=dice)

    def device(self, number: int):
        return self.world.devices[number % len(self.world.devices)]

    @rule(who=WHO, dice=DICE)
    def somebody_writes(self, who: int, dice: Random) -> None:
        self.world.act(self.device(who), dice)

    @rule(who=WHO)
    def a_device_syncs(self, who: int) -> None:
        self.world.sync(self.device(who))

    @rule(who=WHO, writes=st.integers(0, 5))
    def a_device_is_killed_while_it_syncs(self, who: int, writes: int) -> None:
        self.world.sync(self.device(who), writes)

    @rule(giver=WHO, taker=WHO, dice=DICE)
    def some_files_are_carried(self, giver: int, taker: int, dice: Random) -> None:
        self.world.carry(self.device(giver), self.device(taker), dice, lossy=True)

    @rule(who=WHO, dice=DICE)
    def a_file_suffers(self, who: int, dice: Random) -> None:
        self.world.harm(self.device(who), dice)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.world.settle()
                self.world.check()
            finally:
                self.world.close()


TestDevices = Devices.TestCase
TestDevices.settings = settings(
    max_examples=12,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
