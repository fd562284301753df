"""The options of a run: --soak, with which alone long tests are collected, and --update-golden."""

import pytest

from tests.golden import Golden


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="also run the tests marked soak: minutes, gigabytes")
    parser.addoption("--update-golden", action="store_true", help="store generated texts as they are now")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: runs with --soak only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects, rather than skips: what a run was not asked for is no gap in it."""
    if config.getoption("--soak"):
        return
    soak = [item for item in items if item.get_closest_marker("soak")]
    if soak:
        config.hook.pytest_deselected(items=soak)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """golden(text, "name"): what was generated is what is stored in golden/ beside the test."""
    return Golden(request.path.parent / "golden", bool(request.config.getoption("--update-golden")))
