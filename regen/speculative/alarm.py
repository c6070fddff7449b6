"""An alarm that noise does not make flap: so many bad windows in a row raise it, more good ones lift it. Pure."""

from __future__ import annotations


class Alarm:
    """`raise_after` bad windows in a row raise it. Then `lift_after` good ones in a row lift it; one that is neither
    bad nor good begins both counts anew.
    """

    def __init__(self, raise_after: int, lift_after: int) -> None:
        self._raise_after = raise_after
        self._lift_after = lift_after
        self._bad = 0
        self._good = 0
        self.is_raised = False

    def window(self, *, bad: bool, good: bool) -> None:
        self._bad = self._bad + 1 if bad else 0
        self._good = self._good + 1 if good else 0
        if self._bad >= self._raise_after:
            self.is_raised = True
        elif self._good >= self._lift_after:
            self.is_raised = False
