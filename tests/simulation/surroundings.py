"""Brokers and network of a life: what a script does to them."""

import asyncio
from collections import deque
from collections.abc import Callable

from pulsar_fast.topic_producer import State
from pulsar_fast.wire.messages import BaseCommand
from tests.brokers.frames import encode, receipt_for, refusal_of
from tests.simulation.application import Application, Hand
from tests.simulation.cluster import ABOVE, Answer, Cluster, Link
from tests.simulation.identity import Proof


class Surroundings:
    """Does what a script says to a cluster and to the connections to it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cluster: Cluster,
        app: Application,
        proof: Proof,
        set_wall_clock: Callable[[int], None],
    ) -> None:
        self.loop = loop
        self.cluster = cluster
        self.topics = app.topics
        self.app = app
        self.proof = proof
        self.set_wall_clock = set_wall_clock

    # --- brokers

    def act_answer(self, to: str, kind: str, code: int = 0, ms: float = 0) -> None:
        number = BaseCommand.Type.Value(to)
        self.cluster.answers.setdefault(number, deque()).append(Answer(kind, code, ms))

    def act_refuse(self, after: int, code: int) -> None:
        self.cluster.refusals.append((after, code))

    def act_credentials(self, faults: list[str]) -> None:
        self.proof.faults.extend(faults)

    def act_challenge(self, link: int | None, times: int) -> None:
        """Of a connection, or in so many handshakes."""
        if link is None:
            self.cluster.challenged_handshakes += times
        elif (chosen := self._link(link)) is not None:
            for _ in range(times):
                self.cluster.challenge(chosen)

    def act_receipts(self, faults: list[str]) -> None:
        self.cluster.receipt_faults.extend(faults)

    def act_store_in(self, topic: int, ms: float) -> None:
        self.topics[topic].store_ms = ms

    def act_unload(self, topic: int, moves: bool, named: str, kept: int, away_ms: float) -> None:
        chosen = self.topics[topic]
        owner = 1 - chosen.owner if moves else chosen.owner
        urls = self.cluster.urls
        names = {
            "no": None,
            "owner": urls[owner],
            "other": urls[1 - owner],
            "nobody": "pulsar://nobody:1",
            "garbage": "no url",
        }
        self.cluster.unload(chosen, kept=kept, owner=owner, named=names[named], away_ms=away_ms)

    def act_terminate(self, topic: int) -> None:
        self.topics[topic].terminated = True

    def act_crash(self, host: int, kept: int, down_ms: float, reset: bool) -> None:
        for link in self.cluster.open_links(host):
            self._note_cut(link)
        self.cluster.crash(host, kept=kept, down_ms=down_ms, reset=reset)

    def act_say(self, who: int, state: str, what: list[str]) -> None:
        """To a producer in that state, on a connection where the broker has heard of it."""
        for hand in self.app.hands[who:] + self.app.hands[:who]:
            if self.app.hand_of(hand.producer_id) is not None and hand.state.value == state:
                for link in self.cluster.open_links():
                    if hand.producer_id in link.known:
                        for one in what:
                            self._say(link, hand, one)
                        return

    def _say(self, link: Link, hand: Hand, what: str) -> None:
        number = hand.producer_id
        if what.startswith("error"):
            link.send(refusal_of(number, ABOVE**2, int(what.split()[1])), what, about=number)
        elif what.startswith("closed"):
            registered = link.producers.get(number)
            named = self.cluster.urls[hand.topic.owner] if "owner" in what else None
            if registered is not None:
                self.cluster.tell_closed(registered, named)
            else:
                self.cluster.say_closed(link, number, named)
        elif what == "skipped ack":
            link.send(receipt_for(number, ABOVE**2, 1, 0), "skipped ack", about=number)
        elif hand.state is State.CONNECTING and number not in link.producers:
            link.send(receipt_for(number, 0, 1, 0), what, about=number)
        else:
            for record in hand.book.records[:1]:
                if record.stored and record.sequence_id is not None:
                    link.send(
                        receipt_for(number, record.sequence_id, 1, record.stored[0]), what, about=number
                    )

    def act_noise(self, link: int, kind: str) -> None:
        chosen = self._link(link)
        if chosen is None:
            return
        command = BaseCommand(type=BaseCommand.PING, ping={})
        if kind == "success":
            command = BaseCommand(type=BaseCommand.SUCCESS)
            command.success.request_id = 2**40
        elif kind == "pong":
            command = BaseCommand(type=BaseCommand.PONG, pong={})
        noise = {
            "unknown": b"\0\0\0\6\0\0\0\2\x08\x63",
            "migrated": b"\0\0\0\7\0\0\0\3\x08\xc4\x00",
            "empty": b"\0\0\0\4\0\0\0\0",
            "garbage": b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "long": b"\x7f\xff\xff\xff\0\0\0\2",
        }
        chosen.send(noise.get(kind) or encode(command))

    # --- the network

    def _link(self, number: int) -> Link | None:
        links = self.cluster.open_links()
        return links[number % len(links)] if links else None

    def act_cut(self, link: int, reset: bool, behind: bool) -> None:
        chosen = self._link(link)
        if chosen is not None:
            self._cut(chosen, reset, behind)

    def _cut(self, link: Link, reset: bool, behind: bool = False) -> None:
        if link.is_open:
            self._note_cut(link)
            link.close(reset=reset, behind=behind)

    def _note_cut(self, link: Link) -> None:
        where = "inside a frame" if link.wire.is_inside_a_frame else "between frames"
        self.cluster.steps += 1
        for hand in self.app.hands:
            if hand.producer_id in link.known:
                self.app.note(hand, f"cut {where}")

    def act_cut_inside(self, link: int, room: int) -> None:
        """The next time that a frame does not fit, the connection ends in the middle of it."""
        chosen = self._link(link)
        if chosen is not None:
            chosen.wire.when_inside(lambda: self.loop.call_later(0.003, self._cut, chosen, True))
            chosen.wire.room = room
            chosen.wire.stall(True)

    def act_stall(self, link: int, room: int, ms: float) -> None:
        chosen = self._link(link)
        if chosen is None:
            return
        chosen.wire.room = room
        chosen.wire.stall(True)

        def go_on() -> None:
            chosen.wire.room = 1 << 20
            chosen.wire.stall(False)

        self.loop.call_later(ms / 1000, go_on)

    def act_dribble(self, link: int, size: int) -> None:
        chosen = self._link(link)
        if chosen is not None:
            chosen.wire.piece_size = size

    def act_dark(self, host: int, ms: float) -> None:
        self.cluster.dark_until[host] = self.loop.time() + ms / 1000

    def act_set_wall_clock(self, by_ms: int) -> None:
        self.set_wall_clock(by_ms)
