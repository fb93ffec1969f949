"""Stores user behaviour in the form of UBI (User Behavior Insights): searches that ask for it, and events
posted to `/events`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Response
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field

from ..records import Hit
from ..relevance.clicks.insights import Keeper
from ..relevance.clicks.ubi import EVENTS, EXPERIMENT, TEAMS
from .doorway import TOO_MANY
from .requests import Busy, SearchRequest, UbiId, UbiSearch, answer
from .snapshots import Teams

MOST_EVENTS = 1_000
TAKEN = 202
Short = Annotated[str, Field(max_length=256)]
DocumentName = Annotated[str, Field(min_length=1, max_length=512)] | int
Coordinate = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class EventPosition(BaseModel):
    """Where on the page an event happened."""

    ordinal: Coordinate | None = None
    x: Coordinate | None = None
    y: Coordinate | None = None
    page_depth: Coordinate | None = None
    scroll_depth: Coordinate | None = None
    trail: Short | None = None


class EventObject(BaseModel):
    """The object of an event, such as a document."""

    object_id: DocumentName | None = None
    object_id_field: UbiId | None = None
    internal_id: DocumentName | None = None
    name: Short | None = None
    description: Short | None = None


class EventAttributes(BaseModel):
    """Further attributes of an event; unknown ones are dropped."""

    position: EventPosition | None = None
    object: EventObject | None = None


class UbiEvent(BaseModel):
    """An action of a user, in the form of `ubi_events`; unknown fields are dropped."""

    action_name: UbiId
    query_id: UbiId | None = None
    client_id: UbiId | None = None
    user_query: Annotated[str, Field(max_length=1_000)] | None = None
    application: UbiId | None = None
    message: Annotated[str, Field(max_length=1_000)] | None = None
    message_type: UbiId | None = None
    timestamp: AwareDatetime | None = Field(None, description="with its zone; None: when it arrived")
    event_attributes: EventAttributes | None = None


def as_list(value: Any) -> Any:
    """Return one event as a list of one. Raises ValueError for an empty or too long list."""
    items = [value] if isinstance(value, dict) else value
    if isinstance(items, list) and not 0 < len(items) <= MOST_EVENTS:
        raise ValueError(f"1 to {MOST_EVENTS} events are taken")
    return items


Events = Annotated[list[UbiEvent], BeforeValidator(as_list)]


def add_events(app: FastAPI, keeper: Keeper) -> None:
    """Add `/events`."""

    @app.post("/events", summary="What people did with the hits: an event of UBI, or a list of them")
    async def events(body: Events) -> Response:
        records = [event.model_dump(mode="json", exclude_none=True) for event in body]
        if not keeper.keep(EVENTS, records):
            raise Busy("the server has as many events to write as it takes", TOO_MANY)
        return answer({"taken": len(records)}, TAKEN)


def query_record(
    body: SearchRequest, ubi: UbiSearch, query_id: str, hits: Sequence[Hit], teams: Teams | None
) -> dict[str, Any]:
    """Return the entry of `ubi_queries` for a search with these hits; with `teams`, the hits of two
    interleaved rankings.
    """
    of_experiment = {EXPERIMENT: teams.experiment, TEAMS: teams.letters} if teams else {}
    reserved = {EXPERIMENT, TEAMS}
    own = {name: value for name, value in ubi.query_attributes.items() if name not in reserved}
    return {
        "user_query": body.query,
        **ubi.model_dump(exclude_none=True),
        "query_id": query_id,
        "query_response_id": secrets.token_hex(16),
        "query_response_hit_ids": [hit.doc_id for hit in hits],
        "query_attributes": own | of_experiment,
    }
