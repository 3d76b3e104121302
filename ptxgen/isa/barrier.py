"""Rows: CTA, warp and cluster barriers, fences, proxies, mbarrier."""

from __future__ import annotations

from ptxgen.isa.pattern import Row

_SYNC = "Parallel Synchronization and Communication Instructions: "
_SCOPE = "cta|cluster|gpu|sys"
_ID = "0..15"
_RED = f"=u32 u32@{_ID} pred / =u32 u32@{_ID} u32@0../32 pred"
_VOTE = f"=pred u32@{_ID} pred / =pred u32@{_ID} u32@0../32 pred"
_LOCAL = "S=shared|shared::cta?"
_ANY = "S=shared|shared::cta|shared::cluster?"
_STATE = "=u64:r_ [S]"
_RELAXED = "relaxed=8.6,sm_90"
_TRANSACTIONS = "8.0 sm_90"

_SYNC_OPERANDS = f"u32@{_ID} u32@0../32?"
_ARRIVE_OPERANDS = f"u32@{_ID} u32@32../32"

_CTA = (
    Row("bar cta? sync", _SYNC_OPERANDS, raises="cta=7.8"),
    Row("bar cta? arrive", _ARRIVE_OPERANDS, raises="cta=7.8"),
    Row("bar cta? red popc u32", _RED, raises="cta=7.8"),
    Row("bar cta? red and|or pred", _VOTE, raises="cta=7.8"),
    Row("barrier cta? sync aligned?", _SYNC_OPERANDS, raises="cta=7.8"),
    Row("barrier cta? arrive aligned?", _ARRIVE_OPERANDS, raises="cta=7.8"),
    Row("barrier cta? red popc aligned? u32", _RED, raises="cta=7.8"),
    Row("barrier cta? red and|or aligned? pred", _VOTE, raises="cta=7.8"),
)


def _arrivals(word: str) -> tuple[Row, ...]:
    scoped = "release|relaxed cta|cluster"
    state = "=u64 [S] / {7.1,sm_80}=u64:_ [S]"
    counted = f"{state} / {{7.8,sm_90}}{_STATE} u32@1.."
    return (
        Row(f"mbarrier {word} {_LOCAL} b64", counted, "7.0 sm_80"),
        Row(f"mbarrier {word} {scoped} {_LOCAL} b64", counted, "8.0 sm_80", _RELAXED),
        Row(f"mbarrier {word} S=shared::cluster b64", "=b64:_ [S] u32?", _TRANSACTIONS),
        Row(f"mbarrier {word} {scoped} S=shared::cluster b64", "=b64:_ [S] u32?", _TRANSACTIONS, _RELAXED),
        Row(
            f"mbarrier {word} noComplete {_LOCAL} b64", "=u64 [S] u32@1.. / {7.1,sm_80}=u64:_ [S] u32@1..", "7.0 sm_80"
        ),
        Row(f"mbarrier {word} noComplete release cta {_LOCAL} b64", f"{_STATE} u32@1..", "8.0 sm_80"),
        Row(f"mbarrier {word} expect_tx {_LOCAL} b64", f"{_STATE} u32", _TRANSACTIONS),
        Row(f"mbarrier {word} expect_tx {scoped} {_LOCAL} b64", f"{_STATE} u32", _TRANSACTIONS, _RELAXED),
        Row(f"mbarrier {word} expect_tx S=shared::cluster b64", "=b64:_ [S] u32", _TRANSACTIONS),
        Row(f"mbarrier {word} expect_tx {scoped} S=shared::cluster b64", "=b64:_ [S] u32", _TRANSACTIONS, _RELAXED),
    )


def _waits(word: str, since: str, parity_since: str, scoped_since: str, hint: str) -> tuple[Row, ...]:
    scoped = "acquire|relaxed cta|cluster"
    return (
        Row(f"mbarrier {word} {_LOCAL} b64", f"=pred [S] u64{hint}", since),
        Row(f"mbarrier {word} parity {_LOCAL} b64", f"=pred [S] u32@0|1{hint}", parity_since),
        Row(f"mbarrier {word} {scoped} {_LOCAL} b64", f"=pred [S] u64{hint}", scoped_since, _RELAXED),
        Row(f"mbarrier {word} parity {scoped} {_LOCAL} b64", f"=pred [S] u32@0|1{hint}", scoped_since, _RELAXED),
    )


_PROXY = (
    Row("fence proxy alias", "", "7.5"),
    Row("fence proxy async", "", "8.0 sm_90"),
    Row("fence proxy async global|shared::cta|shared::cluster", "", "8.0 sm_90"),
    Row(f"fence proxy tensormap::generic release {_SCOPE}", "", "8.3 sm_90"),
    Row(f"fence proxy tensormap::generic acquire {_SCOPE}", "[] u32:i@128", "8.3 sm_90"),
    Row("fence proxy async::generic acquire sync_restrict::shared::cluster cluster", "", "8.6 sm_90"),
    Row("fence proxy async::generic release sync_restrict::shared::cta cluster", "", "8.6 sm_90"),
)

SECTIONS: dict[str, tuple[Row, ...]] = {
    f"{_SYNC}bar": _CTA,
    f"{_SYNC}bar.warp.sync": (Row("bar warp sync", "u32"),),
    f"{_SYNC}barrier.cluster": (
        Row("barrier cluster arrive release|relaxed? aligned?", "", "7.8 sm_90", "relaxed=8.0 release=8.0"),
        Row("barrier cluster wait acquire? aligned?", "", "7.8 sm_90", "acquire=8.0"),
    ),
    f"{_SYNC}membar": (Row("membar cta|gl|sys", ""), Row("membar proxy alias", "", "7.5")),
    f"{_SYNC}fence": (
        Row(f"fence acq_rel|sc? {_SCOPE}", "", loose=True),
        Row(f"fence acquire|release {_SCOPE}", "", "8.6 sm_90", loose=True),
        Row("fence acquire sync_restrict::shared::cluster cluster", "", "8.6 sm_90"),
        Row("fence release sync_restrict::shared::cta cluster", "", "8.6 sm_90"),
        Row("fence mbarrier_init release cluster", "", "8.0 sm_90"),
        *_PROXY,
    ),
    f"{_SYNC}mbarrier.init": (Row(f"mbarrier init {_LOCAL} b64", "[S] u32@1..1048575", "7.0 sm_80"),),
    f"{_SYNC}mbarrier.inval": (Row(f"mbarrier inval {_LOCAL} b64", "[S]", "7.0 sm_80"),),
    f"{_SYNC}mbarrier.expect_tx": (
        Row(f"mbarrier expect_tx {_ANY} b64", "[S] u32", "8.0 sm_90"),
        Row(f"mbarrier expect_tx relaxed cta|cluster {_ANY} b64", "[S] u32", "8.0 sm_90"),
    ),
    f"{_SYNC}mbarrier.complete_tx": (
        Row(f"mbarrier complete_tx {_ANY} b64", "[S] u32", "8.0 sm_90"),
        Row(f"mbarrier complete_tx relaxed cta|cluster {_ANY} b64", "[S] u32", "8.0 sm_90"),
    ),
    f"{_SYNC}mbarrier.arrive": _arrivals("arrive"),
    f"{_SYNC}mbarrier.arrive_drop": _arrivals("arrive_drop"),
    f"{_SYNC}mbarrier.test_wait": _waits("test_wait", "7.0 sm_80", "7.1 sm_80", "8.0 sm_80", ""),
    f"{_SYNC}mbarrier.try_wait": _waits("try_wait", "7.8 sm_90", "7.8 sm_90", "8.0 sm_90", " u32?"),
    f"{_SYNC}mbarrier.pending_count": (Row("mbarrier pending_count b64", "=u32 u64:r", "7.0 sm_80"),),
    f"{_SYNC}cp.async.mbarrier.arrive": (
        Row(f"cp async mbarrier arrive noinc? {_LOCAL} b64", "[S]", "7.0 sm_80"),
    ),
}  # fmt: skip
