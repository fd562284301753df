"""Stop strings: cut exactly, whatever the pieces."""

from hypothesis import given, settings
from hypothesis import strategies as st

from llmc.runtime.text.stops import StopMatcher

text = st.text(alphabet="ab\n", max_size=20)


@settings(max_examples=1500, deadline=None)
@given(st.lists(text, max_size=10), st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3))
def test_pieces_do_not_matter(pieces, stops):
    whole = "".join(pieces)
    matcher = StopMatcher(stops)
    shown = ""
    for piece in pieces:
        shown += matcher.feed(piece)
        # Nothing is held back that can no longer become a stop.
        seen = whole[: len(shown) + len(matcher._held)]
        assert matcher.matched or any(s.startswith(matcher._held) for s in stops) or not matcher._held
        assert matcher.matched or seen == shown + matcher._held
    shown += matcher.finish()
    cuts = [(whole.find(s) + len(s), whole.find(s)) for s in stops if s in whole]
    assert shown == (whole[: min(cuts)[1]] if cuts else whole)
    assert (matcher.matched is not None) == bool(cuts)


def test_overlapping_stops_cut_at_the_first_complete():
    matcher = StopMatcher(["bcd", "abcx", "c"])
    assert [matcher.feed(p) for p in ("za", "b", "c", "d")] == ["z", "", "ab", ""]
    assert matcher.matched == "c"
    whole = StopMatcher(["bcd", "abcx", "c"])
    assert whole.feed("zabcd") == "zab"


def test_unarmed_text_passes_unseen():
    matcher = StopMatcher(["ab"])
    assert matcher.feed("ab", armed=False) == "ab"
    assert matcher.feed("b") == "b" and matcher.matched is None
