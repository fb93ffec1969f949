"""What a server keeps as UBI does: searches that ask for it, and what is posted to `/events`."""

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
    """Where on the page something happened."""

    ordinal: Coordinate | None = None
    x: Coordinate | None = None
    y: Coordinate | None = None
    page_depth: Coordinate | None = None
    scroll_depth: Coordinate | None = None
    trail: Short | None = None


class EventObject(BaseModel):
    """What it happened to."""

    object_id: DocumentName | None = None
    object_id_field: UbiId | None = None
    internal_id: DocumentName | None = None
    name: Short | None = None
    description: Short | None = None


class EventAttributes(BaseModel):
    """More of an event; what is not known here is left out."""

    position: EventPosition | None = None
    object: EventObject | None = None


class UbiEvent(BaseModel):
    """What somebody did, as `ubi_events` has it; what else it tells is left out."""

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
    """Return one event as a list of one. Raises ValueError for none, or too many to look at."""
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
    """Return the entry of `ubi_queries` for a search with these hits, of two rankings where it has teams."""
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
