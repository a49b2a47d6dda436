"""Random sessions against a model that is too plain to be wrong."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dsh.model.chunks import text_delta
from dsh.model.messages import create_tool_result_message
from dsh.state.session.derive import derive_event_message
from dsh.state.session.errors import SessionForkError
from dsh.state.session.events import (
    ASSISTANT_CHUNK,
    ASSISTANT_MESSAGE,
    REQUEST_CONTEXT,
    REQUEST_HEADER,
    STEP_END,
    STEP_START,
    TODO_WRITE,
    TOOL_CALL,
    TOOL_RESULT,
    TURN_END,
    TURN_START,
    USER_MESSAGE,
    AssistantChunkData,
    AssistantMessageData,
    StepData,
    ToolCallData,
    ToolResultData,
    TurnEndData,
    TurnStartData,
)
from dsh.state.session.fork import child_meta, prefix_at, whole_turns_at
from dsh.state.session.nesting import Nesting
from dsh.state.session.repair import interrupted_turn_closers
from dsh.state.session.request import fold_request_header
from dsh.state.session.session import Session
from dsh.state.session.surface import fold_surface

WORDS = st.text(max_size=6)


class Sessions(RuleBasedStateMachine):
    """Appends, replaces, compacts and forks; compares every fold after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session.create("s", header=header("s"))
        self.turn = self.last_turn = self.step = self.last_step = 0
        self.calls: list[Any] = []
        self.nodes: list[int] = []  # the model of the surface
        self.generation = 0
        self.ids = 0
        self.header: Any = None
        self.context: Any = None

    def fresh(self) -> str:
        self.ids += 1
        return f"m{self.ids}"

    def user(self, text: str) -> Any:
        content = [{"type": "text", "text": text}]
        return {"id": self.fresh(), "role": "user", "content": content, "source": {"kind": "user"}}

    @precondition(lambda self: not self.turn)
    @rule()
    def open_turn(self) -> None:
        self.turn = self.last_turn = self.last_turn + 1
        self.last_step = 0
        self.session.append(TURN_START, TurnStartData(turn=self.turn))

    @precondition(lambda self: self.turn and not self.step)
    @rule()
    def open_step(self) -> None:
        self.step = self.last_step = self.last_step + 1
        self.session.append(STEP_START, StepData(turn=self.turn, step=self.step))

    @precondition(lambda self: self.step)
    @rule()
    def close_step(self) -> None:
        self.session.append(STEP_END, StepData(turn=self.turn, step=self.step))
        self.step, self.calls = 0, []

    @precondition(lambda self: self.turn and not self.step)
    @rule(kind=st.sampled_from(["completed", "blocked", "max-tokens"]))
    def close_turn(self, kind: str) -> None:
        self.session.append(TURN_END, TurnEndData(turn=self.turn, reason={"kind": kind}))
        self.turn = 0

    @rule(text=WORDS)
    def say(self, text: str) -> None:
        event = self.session.append(USER_MESSAGE, self.user(text), surface_op="append")
        self.nodes.append(event["seq"])

    @precondition(lambda self: self.step)
    @rule(texts=st.lists(WORDS, max_size=4), calls=st.integers(0, 2))
    def answer(self, texts: list[str], calls: int) -> None:
        where = {"turn": self.turn, "step": self.step}
        sources = [
            self.session.append(
                ASSISTANT_CHUNK,
                AssistantChunkData(turn=self.turn, step=self.step, chunk=text_delta(0, text)),
            )["seq"]
            for text in texts
        ]
        content: list[Any] = [{"type": "text", "text": "".join(texts)}] if texts else []
        names = [self.fresh() for _ in range(calls)]
        content += [
            {"type": "tool-call", "id": name, "name": "t", "arguments": "{}"} for name in names
        ]
        message = {
            "id": self.fresh(),
            "role": "assistant",
            "content": content,
            "source": {"kind": "model", "provider": "p", "model": "m"},
        }
        event = self.session.append(
            ASSISTANT_MESSAGE,
            cast("AssistantMessageData", {**where, "message": message}),
            surface_op="append",
            source_event_seqs=sources,
        )
        self.nodes.append(event["seq"])
        for name in names:
            data = ToolCallData(
                turn=self.turn, step=self.step, callId=name, name="t", arguments="{}"
            )
            self.calls.append(self.session.append(TOOL_CALL, data))

    @precondition(lambda self: self.calls)
    @rule(text=WORDS, data=st.data())
    def result(self, text: str, data: st.DataObject) -> None:
        started = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        message = create_tool_result_message(
            started["data"]["callId"], [{"type": "text", "text": text}], False
        )
        event = self.session.append(
            TOOL_RESULT,
            ToolResultData(turn=self.turn, step=self.step, message=message),
            surface_op="append",
            source_event_seqs=[started["seq"]],
        )
        self.nodes.append(event["seq"])

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), more=st.booleans())
    def compact(self, data: st.DataObject, more: bool) -> None:
        first = data.draw(st.integers(0, len(self.nodes) - 1))
        last = data.draw(st.integers(first, len(self.nodes) - 1))
        shadowed = self.nodes[first : last + 1]
        event = self.session.append(
            USER_MESSAGE,
            self.user("summary"),
            surface_op={"op": "replace", "start": shadowed[0], "end": shadowed[-1]},
            source_event_seqs=sorted({*shadowed, 0} if more else shadowed),
        )
        self.nodes[first : last + 1] = [event["seq"]]
        self.generation += 1

    @precondition(lambda self: self.turn and self._results())
    @rule(data=st.data(), text=WORDS)
    def prune(self, data: st.DataObject, text: str) -> None:
        seq = data.draw(st.sampled_from(self._results()))
        old: Any = self.session.events[seq]["data"]
        (block,) = old["message"]["content"]
        content = [{**block, "content": [{"type": "text", "text": text}]}]
        event = self.session.append(
            TOOL_RESULT,
            {**old, "message": {**old["message"], "content": content}},
            surface_op={"op": "replace", "start": seq, "end": seq},
            source_event_seqs=[seq],
        )
        self.nodes[self.nodes.index(seq)] = event["seq"]
        self.generation += 1

    def _results(self) -> list[int]:
        events = self.session.events
        return [seq for seq in self.nodes if events[seq]["type"] == "tool/result"]

    @precondition(lambda self: self.turn)
    @rule(model=st.sampled_from(["a", "b"]), system=st.sampled_from(["", "s"]))
    def request(self, model: str, system: str) -> None:
        wanted = {"config": {"provider": "p", "model": model}, "system": system, "tools": []}
        self.session.append(REQUEST_HEADER, {"header": wanted, "reason": "change"})  # type: ignore[typeddict-item]
        self.session.append(REQUEST_CONTEXT, {"provider": "p", "model": model})
        self.context = {"provider": "p", "model": model}
        self.header = {"config": wanted["config"]} | ({"system": system} if system else {})

    @precondition(lambda self: self.turn)
    @rule()
    def log_only(self) -> None:
        self.session.append(TODO_WRITE, {"todos": []})

    @rule()
    def reopen(self) -> None:
        """Resume: what a crash left open is closed, and the same session goes on."""
        events = list(self.session.events)
        closers = interrupted_turn_closers(events)
        self.session = Session.from_restore("s", [*events, *closers], self.session.header)
        self.nodes += [event["seq"] for event in closers if "surfaceOp" in event]
        self.turn = self.step = 0
        self.calls = []

    @precondition(lambda self: not self.turn)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """Go on with a fork from here; its history is that of its parent."""
        parent = self.session
        prefix = prefix_at("s", parent.events, None)
        self.session = Session.fresh("s", prefix, child_meta(parent.header, prefix))
        assert self.session.derive_messages() == parent.derive_messages()

    @rule(at=st.integers(0, 80))
    def any_fork_derives_its_prefix(self, at: int) -> None:
        try:
            prefix = whole_turns_at("s", self.session.events, at)
        except SessionForkError:
            return
        child = Session.fresh("child", prefix, child_meta(self.session.header, prefix))
        assert child.derive_messages() == plain_derivation(prefix)
        assert child.request_header() == fold_request_header(prefix)

    @invariant()
    def incremental_folds_equal_full_folds(self) -> None:
        session = self.session
        assert list(session.surface.nodes) == self.nodes
        assert list(fold_surface(session.events).nodes) == self.nodes
        assert session.derive_messages() == plain_derivation(session.events)
        assert session.request_header() == fold_request_header(session.events) == self.header
        assert session.request_context() == self.context

    @invariant()
    def a_replay_is_the_same_session(self) -> None:
        replayed = Session.create("s", self.session.events, self.session.header)
        assert list(replayed.events[: self.session.seq]) == list(self.session.events)
        assert replayed.surface.nodes == self.session.surface.nodes
        assert replayed.derive_messages() == self.session.derive_messages()
        assert replayed.request_header() == self.session.request_header()

    @invariant()
    def its_order_keeps_the_rules(self) -> None:
        nesting = Nesting()
        for event in self.session.events:
            assert nesting.problem(event) is None
            nesting.read(event)


def plain_derivation(events: Any) -> list[Any]:
    """Derive by the words of the rules, with lists of lists and no plan."""
    surface: list[int] = []
    for event in events:
        op = event.get("surfaceOp")
        if op == "append":
            surface.append(event["seq"])
        elif op is not None:
            start, end = surface.index(op["start"]), surface.index(op["end"])
            surface = [*surface[:start], event["seq"], *surface[end + 1 :]]
    messages = (derive_event_message(events[seq]) for seq in surface)
    return [message for message in messages if message is not None]


def header(id: str) -> Any:
    return {"version": 0, "id": id, "createdAt": 1}


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
