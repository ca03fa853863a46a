"""Existing applications behind a relay with one line: FastAPI (and so Starlette) and Django, with HTTP, WebSockets and lifespan."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tandem.aio.relay import RelayEndpoint, RelayListener, RelayPair, RelaySender, RelayUnavailableError, serve_asgi
from tests.relay.house import RelayHouse, relay, relay_house

LARGE = b"0123456789" * 30_000


def endpoint(house: RelayHouse, name: str = "shop") -> RelayEndpoint:
    return RelayEndpoint.from_connection_string(house.connection_string, name)


@asynccontextmanager
async def served(application: Any) -> AsyncIterator[tuple[RelayHouse, RelaySender]]:
    async with relay_house(relay("shop")) as house, RelayListener(endpoint(house)) as listener, RelaySender(endpoint(house)) as sender:
        serving = asyncio.create_task(serve_asgi(listener, application))
        yield house, sender
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


def a_shop(told: list[str]) -> Any:
    fastapi = pytest.importorskip("fastapi", reason="MISSING: FastAPI; pip install fastapi")
    responses = pytest.importorskip("starlette.responses")

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[dict[str, str]]:
        told.append("started")
        yield {"owner": "Ada"}
        told.append("stopped")

    app = fastapi.FastAPI(lifespan=lifespan)

    async def item(request: Any, number: int, q: str = "") -> Any:
        answer = responses.JSONResponse(
            {"number": number, "q": q, "owner": request.state.owner, "url": str(request.url_for("item", number=7))}
        )
        answer.set_cookie("one", "1")
        answer.set_cookie("two", "2")
        return answer

    async def upload(request: Any) -> Any:
        async def pieces() -> AsyncIterator[bytes]:
            async for piece in request.stream():
                yield piece

        return responses.StreamingResponse(pieces(), status_code=201)

    async def later(request: Any, tasks: Any) -> dict[str, str]:
        tasks.add_task(lambda: told.append("done in the background"))
        return {"said": "soon"}

    async def talk(socket: Any) -> None:
        if socket.headers.get("x-stranger"):
            await socket.close()
            return
        await socket.accept(subprotocol="chat" if socket.scope["subprotocols"] else None)
        with contextlib.suppress(fastapi.WebSocketDisconnect):
            await socket.send_json({"path": socket.url.path, "root": socket.scope["root_path"], "owner": socket.state.owner})
            while True:
                heard = await socket.receive_text()
                if heard == "break":
                    raise RuntimeError("a mistake of the application")
                await (socket.send_bytes(heard.encode()) if heard.startswith("b") else socket.send_text(heard.upper()))
        told.append("hung up")

    item.__annotations__.update(request=fastapi.Request)
    upload.__annotations__.update(request=fastapi.Request)
    later.__annotations__.update(request=fastapi.Request, tasks=fastapi.BackgroundTasks)
    talk.__annotations__.update(socket=fastapi.WebSocket)
    app.get("/items/{number}", name="item")(item)
    app.post("/upload")(upload)
    app.get("/later")(later)
    app.websocket("/talk")(talk)
    return app


async def test_a_fastapi_application_answers_http_with_its_cookies_streams_and_addresses() -> None:
    told: list[str] = []
    async with served(a_shop(told)) as (house, sender):
        reply = await sender.request("GET", "items/5", params={"q": "ä b"})
        assert reply.status == 200
        assert json.loads(reply.body) == {"number": 5, "q": "ä b", "owner": "Ada", "url": f"http://{house.host}/shop/items/7"}
        cookies = reply.headers.getall("Set-Cookie")  # type: ignore[attr-defined]
        assert [cookie.partition(";")[0] for cookie in cookies] == ["one=1", "two=2"]
        assert (await sender.request("GET", "items/many")).status == 422
        assert (await sender.request("GET", "nowhere")).status == 404
        reply = await sender.request("POST", "upload", data=LARGE)
        assert (reply.status, reply.body) == (201, LARGE)
        assert json.loads((await sender.request("GET", "later")).body) == {"said": "soon"}
        assert json.loads((await sender.request("GET", "openapi.json")).body)["servers"] == [{"url": "/shop"}]
    assert told == ["started", "done in the background", "stopped"]


async def test_a_fastapi_application_talks_over_websockets_and_hears_when_they_end() -> None:
    told: list[str] = []
    async with served(a_shop(told)) as (_, sender):
        async with sender.connect("talk", sub_protocols=["chat", "other"]) as stream:
            assert stream.sub_protocol == "chat"
            assert json.loads(str(await stream.receive())) == {"path": "/shop/talk", "root": "/shop", "owner": "Ada"}
            await stream.send("hello")
            assert await stream.receive() == "HELLO"
            await stream.send("bytes")
            assert await stream.receive() == b"bytes"
        async with asyncio.timeout(20):
            while "hung up" not in told:
                await asyncio.sleep(0.01)
        async with sender.connect("talk", headers={"X-Stranger": "yes"}) as stream:
            with pytest.raises(RelayUnavailableError, match="1008"):
                await stream.receive()
        async with sender.connect("talk") as stream:
            await stream.receive()
            await stream.send("break")
            with pytest.raises(RelayUnavailableError, match="1011"):
                await stream.receive()
        async with sender.connect("no/such/place") as stream:
            with pytest.raises(RelayUnavailableError, match="1008"):
                await stream.receive()


async def test_an_application_behind_a_pair_of_relays_is_told_which_of_them_it_is_under() -> None:
    async with relay_house(relay("one")) as one, relay_house(relay("two")) as two:
        ends = (endpoint(one, "one"), endpoint(two, "two"))
        async with RelayPair(*ends).listen() as listener:
            await asyncio.gather(*(single.wait_online(10) for single in listener.listeners))
            serving = asyncio.create_task(serve_asgi(listener, a_shop([])))
            for end in ends:
                async with RelaySender(end) as sender:
                    found = json.loads((await sender.request("GET", "items/1")).body)
                    assert found["url"] == f"http://{end.host}/{end.relay}/items/7"
                    async with sender.connect("talk") as stream:
                        assert json.loads(str(await stream.receive()))["root"] == f"/{end.relay}"
            serving.cancel()


def django_application() -> Any:
    """Settings, a view and an application in one, as small as Django goes."""
    pytest.importorskip("django", reason="MISSING: Django; pip install django")
    from django.conf import settings

    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["localhost"],
            ROOT_URLCONF=__name__,
            SECRET_KEY="x" * 50,
            MIDDLEWARE=["django.middleware.common.CommonMiddleware", "django.middleware.security.SecurityMiddleware"],
            LOGGING_CONFIG=None,
        )
    from django.core.asgi import get_asgi_application
    from django.http import HttpRequest, HttpResponse, JsonResponse
    from django.urls import path, reverse
    from django.views.decorators.csrf import csrf_exempt

    def page(request: HttpRequest, number: int) -> JsonResponse:
        where = {"here": request.build_absolute_uri(), "there": reverse("page", args=[9]), "client": request.META["REMOTE_ADDR"]}
        return JsonResponse({"number": number, "q": request.GET.get("q"), **where})

    async def upload(request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.body, status=201)

    globals()["urlpatterns"] = [path("pages/<int:number>", page, name="page"), path("upload", csrf_exempt(upload))]
    return get_asgi_application()


async def test_a_django_application_knows_its_host_and_its_place_and_takes_uploads() -> None:
    async with served(django_application()) as (house, sender):
        reply = await sender.request("GET", "pages/3", params={"q": "x"})
        assert json.loads(reply.body) == {
            "number": 3,
            "q": "x",
            "here": f"http://{house.host}/shop/pages/3?q=x",
            "there": "/shop/pages/9",
            "client": "127.0.0.1",
        }
        assert (await sender.request("GET", "pages/none")).status == 404
        reply = await sender.request("POST", "upload", data=LARGE)
        assert (reply.status, reply.body) == (201, LARGE)
