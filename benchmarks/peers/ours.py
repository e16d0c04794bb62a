"""The peer that measures pulsar_fast. See measure.py for what it takes and prints."""

from __future__ import annotations

from measure import measure

import pulsar_fast

if __name__ == "__main__":
    measure(pulsar_fast.Client, shapes=["callback", "nocallback", "send_many"])
