"""The option --soak: long tests are collected with it only."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="also run the tests marked soak: minutes, gigabytes")


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
