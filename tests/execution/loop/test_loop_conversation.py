"""What the last boundary before an adapter looks at: each message once, for all requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from loop_harness import Loop, calls, user

from dsh.base.json import FrozenDict, FrozenList
from dsh.model.llm.projection import (
    Conversation,
    ConversationReader,
    has_images,
    without_foreign_replay_state,
    without_images,
)
from dsh.model.messages import (
    Message,
    create_assistant_message,
    create_tool_result_message,
    create_user_message,
)

IMAGE: Any = {"type": "image", "attachment": {"attachmentId": "sha256:0123456789abcdef"}}


class Watched(FrozenDict):
    """A message that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, key: str) -> Any:
        type(self).looks += 1
        return super().__getitem__(key)


def reply(provider: str, **source: Any) -> Message:
    message = create_assistant_message([{"type": "text", "text": "hi"}], provider, "m")
    return FrozenDict({**message, "source": FrozenDict({**message["source"], **source})})  # type: ignore[return-value]


def own(provider: str) -> bool:
    return provider == "own"


def project(messages: Sequence[Message]) -> Sequence[Message]:
    kept = without_foreign_replay_state(messages, own)
    return without_images(kept) if has_images(kept, ("text",)) else kept


def test_each_message_is_looked_at_once_for_all_requests_of_a_conversation() -> None:
    reader = ConversationReader()
    messages: list[Any] = [Watched(reply("own", replayState={})) for _ in range(100)]
    project(reader.take(messages, 0))
    seen = Watched.looks
    for _ in range(10):
        assert isinstance(project(reader.take(messages, 0)), Conversation)
    assert Watched.looks == seen
    messages.append(Watched(reply("own")))
    project(reader.take(messages, 0))
    assert Watched.looks <= seen + 2


@pytest.mark.parametrize("known", [True, False])
def test_a_reader_changes_nothing_about_what_is_projected(known: bool) -> None:
    plain: list[Any] = [
        create_user_message("go"),
        reply("own", replayState={"a": 1}),
        reply("other", replayState={"b": 1}),
        create_user_message([IMAGE]),
        create_tool_result_message("c", [IMAGE], False),
    ]
    reader = ConversationReader()
    if known:
        project(reader.take(plain[:3], 0))
    seen = project(reader.take(plain, 0))
    assert seen == project(FrozenList(plain))
    assert "replayState" in seen[1]["source"]
    assert "replayState" not in seen[2]["source"]
    assert not has_images(seen, ("text",))


def test_what_was_projected_once_is_the_same_object_next_time() -> None:
    reader = ConversationReader()
    plain: list[Any] = [reply("other", replayState={}), create_user_message([IMAGE])]
    once = project(reader.take(plain, 0))
    again = project(reader.take([*plain, create_user_message("more")], 0))
    assert all(mine is theirs for mine, theirs in zip(once, again, strict=False))


def test_a_rewritten_conversation_is_read_again() -> None:
    reader = ConversationReader()
    project(reader.take([create_user_message([IMAGE]), create_user_message("x")], 0))
    assert not has_images(reader.take([create_user_message("summary")], 1), ("text",))
    images = reader.take([create_user_message("summary"), create_user_message([IMAGE])], 1)
    assert has_images(images, ("text",))


def test_a_shorter_conversation_does_not_see_what_came_later() -> None:
    reader = ConversationReader()
    before = reader.take([create_user_message("x")], 0)
    reader.take([create_user_message("x"), create_user_message([IMAGE])], 0)
    assert not has_images(before, ("text",))
    assert without_images(before) is before


async def test_requests_of_a_growing_turn_share_what_was_read(loop: Loop) -> None:
    agent = await loop.agent()
    loop.model.will(calls(("a", "nope", "{}")), calls(("b", "nope", "{}")), "end")
    agent.followup(user("go"))
    await agent.when_idle()
    assert [len(request.messages) for request in loop.model.requests] == [1, 3, 5]
    assert all(isinstance(request.messages, Conversation) for request in loop.model.requests)
    assert loop.model.requests[-1].messages == agent.session.derive_messages()[:-1]
