"""All routes. What is open is open without a key; all else is behind it."""

from llmc.serve.http.routing import Route
from llmc.serve.page.routes import PAGE_ROUTES
from llmc.serve.routes.chat import chat
from llmc.serve.routes.completions import completions
from llmc.serve.routes.models import embeddings, models, one_model
from llmc.serve.routes.operation import health, metrics, ready, version
from llmc.serve.routes.responses import responses
from llmc.serve.routes.tokens import detokenize, tokenize
from llmc.serve.server import Server

ROUTES: tuple[Route[Server], ...] = (
    Route("POST", "/v1/chat/completions", chat),
    Route("POST", "/v1/completions", completions),
    Route("POST", "/v1/responses", responses),
    Route("GET", "/v1/models", models),
    Route("GET", "/v1/models/*", one_model),
    Route("POST", "/v1/embeddings", embeddings),
    Route("POST", "/tokenize", tokenize),
    Route("POST", "/detokenize", detokenize),
    Route("GET", "/metrics", metrics),
    Route("GET", "/version", version),
    Route("GET", "/health", health, open=True),
    Route("GET", "/ready", ready, open=True),
    *PAGE_ROUTES,
)
