"""Regions: what each kind of buffer becomes, what is refused, and which regions share a byte."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from kvlayout.emit import regions
from kvlayout.emit.regions import Named, Region, clashes, flat, region, same_cells
from kvlayout.errors import SubmitError

PAGE = 16
ROWS = 5


def poke(found: Region) -> None:
    """Fill row i with i + 1, by address alone."""
    for row in range(found.rows):
        ctypes.memset(found.address + row * found.stride, row + 1, found.nbytes)


def refused(call: Callable[[], object], code: str) -> str:
    with pytest.raises(SubmitError) as caught:
        call()
    (one,) = caught.value.problems
    assert (one.code, one.where) == (code, "here")
    assert one.help and one.expected
    return str(one)


def with_ones(values: Any) -> Any:
    """(5, 1, 2, 8): the axis of size 1 has a stride that means nothing."""
    return np.lib.stride_tricks.as_strided(values, (ROWS, 1, 2, 8), (PAGE, 3, 8, 1))


class TestNumpy:
    @pytest.mark.parametrize(
        ("shape", "dtype"),
        [
            ((ROWS, 16), np.uint8),
            ((ROWS, 2, 4), np.int16),
            ((ROWS, 2, 1, 1), np.float64),
            ((ROWS, 1), np.complex128),
            ((ROWS,), np.complex128),
            ((ROWS,), "V16"),
            ((ROWS,), [("k", "i8"), ("v", "f8")]),
            ((ROWS, 2), "M8[s]"),
            ((ROWS, 4), ">i4"),
            ((ROWS * 16,), np.uint8),
            ((ROWS * 4,), np.float32),
        ],
    )
    def test_rows_end_to_end(self, shape: tuple[int, ...], dtype: Any) -> None:
        values = np.zeros(shape, dtype)
        found = region(values, PAGE, "here", writable=True)
        assert (found.rows, found.stride, found.nbytes) == (ROWS, PAGE, PAGE)
        assert found.end - found.address == values.nbytes
        poke(found)
        assert values.tobytes() == b"".join(bytes([row + 1]) * PAGE for row in range(ROWS))

    @pytest.mark.parametrize(
        ("cut", "stride", "begin"),
        [
            (lambda a: a[:, 1], 48, 16),
            (lambda a: a[::2, 2], 96, 32),
            (lambda a: a[:, 0].view(np.int64), 48, 0),
            (lambda a: a[:, 1].view("V16")[:, 0], 48, 16),
        ],
        ids=["layer", "every other block", "other dtype", "one item a row"],
    )
    def test_rows_with_gaps(self, cut: Callable[[Any], Any], stride: int, begin: int) -> None:
        values = np.zeros((6, 3, PAGE), np.uint8)
        found = region(cut(values), PAGE, "here", writable=True)
        assert (found.stride, found.nbytes) == (stride, PAGE)
        assert found.address == values.ctypes.data + begin
        poke(found)
        expected = np.zeros(values.nbytes, np.uint8)
        for row in range(found.rows):
            expected[begin + row * stride :][:PAGE] = row + 1
        assert values.tobytes() == expected.tobytes()

    def test_axes_of_size_one_have_any_stride(self) -> None:
        values = np.zeros(ROWS * PAGE, np.uint8)
        found = region(with_ones(values), PAGE, "here", writable=True)
        assert (found.address, found.rows, found.stride) == (values.ctypes.data, ROWS, PAGE)

    @pytest.mark.parametrize("cut", [slice(2, 3), slice(2, None, 9), slice(2, 1, -1)])
    def test_one_row_has_no_stride(self, cut: slice) -> None:
        values = np.zeros((ROWS, PAGE), np.uint8)
        found = region(values[cut], PAGE, "here", writable=True)
        assert (found.address, found.rows) == (values.ctypes.data + 2 * PAGE, 1)
        assert found.end == found.address + PAGE

    @pytest.mark.parametrize(
        "values", [np.zeros((0, 2)), np.zeros((0, 2, 1)), np.zeros(0), np.zeros(0, "V16"), np.zeros((4, 2))[4:]]
    )
    def test_no_rows(self, values: Any) -> None:
        found = region(values, PAGE, "here", writable=True)
        assert (found.rows, found.end) == (0, found.address)

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            (np.zeros((4, 3)), "16 bytes a row; got 24 bytes"),
            (np.zeros((4, 1)), "16 bytes a row; got 8 bytes"),
            (np.zeros((4, 0)), "got 0 bytes"),
            (np.zeros((0, 3)), "got 24 bytes"),
            (np.zeros((4, 4))[:, ::2], "not in order"),
            (np.zeros((4, 2))[:, ::-1], "not in order"),
            (np.zeros((2, 4)).T, "not in order"),
            (np.zeros((4, 2, 1)).repeat(2, axis=2)[:, :, 0], "not in order"),
            (np.array(1j), "not in order"),
            (np.zeros((4, 2))[::-1], "go backward"),
            (np.zeros(4, "V16")[::-1], "go backward"),
            (np.broadcast_to(np.zeros(2), (4, 2)), "rows overlap"),
            (np.lib.stride_tricks.sliding_window_view(np.zeros(8), 2), "rows overlap"),
            (np.zeros(3), "no whole pages"),
            (np.zeros(8)[::2], "no whole pages"),
            (np.zeros(8)[::-1], "no whole pages"),
            (np.full((4, 2), None), "Python objects"),
            (np.zeros(4, [("a", "O"), ("b", "i8")]), "Python objects"),
        ],
    )
    def test_what_holds_no_pages(self, values: Any, said: str) -> None:
        assert said in refused(lambda: region(values, PAGE, "here", writable=False), "KVL602")

    def test_a_destination_may_be_written_to(self) -> None:
        values = np.zeros((ROWS, PAGE), np.uint8)
        values.flags.writeable = False
        assert region(values, PAGE, "here", writable=False).rows == ROWS
        assert "read-only" in refused(lambda: region(values, PAGE, "here", writable=True), "KVL602")


class TestTorch:
    @pytest.mark.parametrize(
        "dtype", [torch.uint8, torch.bfloat16, torch.float8_e4m3fn, torch.float32, torch.complex64, torch.bool]
    )
    def test_rows_end_to_end(self, dtype: torch.dtype) -> None:
        values = torch.zeros(ROWS * PAGE, dtype=torch.uint8)
        found = region(values.view(dtype).view(ROWS, 1, -1), PAGE, "here", writable=True)
        assert (found.address, found.rows, found.stride) == (values.data_ptr(), ROWS, PAGE)
        poke(found)
        assert values.view(ROWS, PAGE).tolist() == [[row + 1] * PAGE for row in range(ROWS)]

    def test_one_axis_of_all_bytes(self) -> None:
        found = region(torch.zeros(ROWS * 4), PAGE, "here", writable=True)
        assert (found.rows, found.stride) == (ROWS, PAGE)

    def test_rows_with_gaps(self) -> None:
        values = torch.zeros(ROWS, 3, PAGE, dtype=torch.uint8)
        found = region(values[:, 1], PAGE, "here", writable=True)
        assert (found.address, found.rows, found.stride) == (values.data_ptr() + PAGE, ROWS, 3 * PAGE)
        poke(found)
        assert values[:, 1].tolist() == [[row + 1] * PAGE for row in range(ROWS)]
        assert not values[:, ::2].any()

    def test_no_rows(self) -> None:
        assert region(torch.zeros(0, 4), PAGE, "here", writable=True).rows == 0

    @pytest.mark.parametrize(
        ("made", "said"),
        [
            (lambda: torch.zeros(4, 3), "got 12 bytes"),
            (lambda: torch.zeros(4, 4).T[:, :4], "not in order"),
            (lambda: torch.zeros(1, 4).expand(4, 4), "rows overlap"),
            (lambda: torch.tensor(1.0), "not in order"),
            (lambda: torch.zeros(4, 4, device="meta"), "memory of a device is moved by a transport or a kernel"),
            (lambda: torch.zeros(4, 2, dtype=torch.complex64).conj(), "not its elements"),
            (lambda: torch.zeros(4, 4, dtype=torch.complex64).conj().imag, "not its elements"),
            (lambda: torch.zeros(4, 4).to_sparse(), "not its elements"),
            (lambda: torch.zeros(4, 4).to_sparse_csr(), "not its elements"),
        ],
    )
    def test_what_holds_no_pages(self, made: Callable[[], torch.Tensor], said: str) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support")
            values = made()
        assert said in refused(lambda: region(values, PAGE, "here", writable=True), "KVL602")

    def test_tensors_without_memory(self) -> None:
        gone, cut, late = torch.zeros(4, 4), torch.zeros(4, 4), torch.zeros(8, 4)[4:]
        gone.untyped_storage().resize_(0)
        cut.untyped_storage().resize_(60)
        late.untyped_storage().resize_(100)
        with FakeTensorMode():
            fake = torch.zeros(4, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # all three are prototypes, as torch says
            masked = torch.masked.masked_tensor(torch.zeros(4, 4), torch.ones(4, 4, dtype=torch.bool))
            nested = torch.nested.nested_tensor([torch.zeros(4), torch.zeros(3)])
            pending = torch.nn.UninitializedParameter()
        for values in (gone, cut, late, fake, masked, nested, pending):
            assert "has no memory" in refused(
                lambda values=values: region(values, PAGE, "here", writable=True), "KVL602"
            )


class TestBufferProtocol:
    @pytest.mark.parametrize(
        "made",
        [
            lambda: bytearray(ROWS * PAGE),
            lambda: memoryview(bytearray(ROWS * PAGE)),
            lambda: memoryview(bytearray(ROWS * PAGE)).cast("B", (ROWS, PAGE)),
            lambda: memoryview(bytearray(ROWS * PAGE)).cast("d", (ROWS, 2)),
            lambda: mmap.mmap(-1, ROWS * PAGE),
            lambda: array.array("i", bytes(ROWS * PAGE)),
            lambda: (ctypes.c_uint8 * PAGE * ROWS)(),
            lambda: (ctypes.c_uint8 * (PAGE * ROWS))(),
            lambda: memoryview(np.zeros(ROWS, [("Own", "i8"), ("O", "f8")])),
        ],
    )
    def test_rows_end_to_end(self, made: Callable[[], Any]) -> None:
        values = made()
        found = region(values, PAGE, "here", writable=True)
        assert (found.rows, found.stride, found.nbytes) == (ROWS, PAGE, PAGE)
        poke(found)
        assert memoryview(values).tobytes() == b"".join(bytes([row + 1]) * PAGE for row in range(ROWS))

    def test_rows_with_gaps(self) -> None:
        values = np.zeros((6, PAGE), np.uint8)
        found = region(memoryview(values)[::2], PAGE, "here", writable=True)
        assert (found.address, found.rows, found.stride) == (values.ctypes.data, 3, 2 * PAGE)
        poke(found)
        assert values[:, 0].tolist() == [1, 0, 2, 0, 3, 0]

    def test_bytes_are_a_source_only(self) -> None:
        values = bytes(range(80))
        found = region(values, PAGE, "here", writable=False)
        assert ctypes.string_at(found.address, 80) == values
        assert "read-only" in refused(lambda: region(values, PAGE, "here", writable=True), "KVL602")
        assert region(b"", PAGE, "here", writable=False).rows == 0

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            (bytearray(17), "no whole pages"),
            (memoryview(bytearray(64))[::-1], "no whole pages"),
            (memoryview(np.zeros((4, 6))[:, ::3]), "not in order"),
            (memoryview(np.zeros((4, 2), order="F")), "not in order"),
            (memoryview(np.array(1.0)), "not in order"),
            (np.float64(1), "not in order"),
            (memoryview(np.full((4, 2), None)), "Python objects"),
            (memoryview(np.zeros(4, [("a", "O"), ("b", "i8")])), "Python objects"),
            (memoryview(np.zeros(4, [("i", [("o", "O")]), ("b", "i8")])), "Python objects"),
            ((ctypes.py_object * 4)(), "Python objects"),
            (None, "got NoneType"),
            ([bytearray(16)], "got list"),
            ("0" * 16, "got str"),
            (16, "got int"),
        ],
    )
    def test_what_holds_no_pages(self, values: Any, said: str) -> None:
        assert said in refused(lambda: region(values, PAGE, "here", writable=False), "KVL602")

    def test_memory_that_is_gone(self) -> None:
        view, area = memoryview(bytearray(PAGE)), mmap.mmap(-1, PAGE)
        view.release()
        area.close()
        assert "got memoryview: operation forbidden on released memoryview" in refused(
            lambda: region(view, PAGE, "here", writable=True), "KVL602"
        )
        assert "got mmap: mmap closed or invalid" in refused(
            lambda: region(area, PAGE, "here", writable=True), "KVL602"
        )

    def test_an_object_that_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only objects of C can before Python 3.12; there a class says it with `__buffer__`."""

        def no(_: object) -> memoryview:
            raise BufferError("not now")

        monkeypatch.setattr(regions, "memoryview", no, raising=False)
        assert "got bytearray: not now" in refused(lambda: region(bytearray(16), PAGE, "here", writable=True), "KVL602")

    def test_the_owner_keeps_the_memory(self) -> None:
        found = region(bytearray(b"x" * PAGE), PAGE, "here", writable=True)
        gc.collect()
        assert ctypes.string_at(found.address, PAGE) == b"x" * PAGE
        area = mmap.mmap(-1, PAGE)
        found = region(area, PAGE, "here", writable=True)
        with pytest.raises(BufferError):
            area.close()
        del found
        area.close()


class TestFlat:
    @pytest.mark.parametrize(
        "values",
        [np.zeros(12, np.uint8), np.zeros((3, 1, 4), np.uint8), np.zeros((3, 2), np.int16), np.zeros((), "V12"),
         bytearray(12), torch.zeros(3), torch.zeros(3, 2, dtype=torch.bfloat16)],
    )  # fmt: skip
    def test_all_bytes_are_one_row(self, values: Any) -> None:
        found = flat(values, "here", writable=True)
        assert (found.rows, found.stride, found.nbytes) == (1, 12, 12)
        poke(found)
        assert bytes(values if not isinstance(values, torch.Tensor) else values.view(torch.uint8).numpy()) == b"\1" * 12

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            (np.zeros(12)[::2], "has gaps"),
            (np.zeros((3, 2)).T, "has gaps"),
            (torch.zeros(3, 2)[:, 0], "has gaps"),
            (torch.zeros(3, device="meta"), "not in CPU memory"),
            (np.full(3, None), "Python objects"),
            (memoryview(np.full(3, None)), "Python objects"),
            (b"abc", "read-only"),
            (None, "got NoneType"),
        ],
    )
    def test_what_is_no_packed_buffer(self, values: Any, said: str) -> None:
        assert said in refused(lambda: flat(values, "here", writable=True), "KVL608")

    def test_nothing_is_a_buffer_of_no_bytes(self) -> None:
        assert flat(b"", "here", writable=False).nbytes == 0


def touched(one: Region) -> set[int]:
    return {one.address + row * one.stride + byte for row in range(one.rows) for byte in range(one.nbytes)}


@st.composite
def small_regions(draw: st.DrawFn) -> Region:
    """Rows within some two hundred bytes; strides often equal, so that rows alternate."""
    nbytes = draw(st.integers(0, 7))
    stride = draw(st.sampled_from([max(nbytes, 1), 8, 8, 12, 24]) | st.integers(max(nbytes, 1), 20))
    return Region(draw(st.integers(1000, 1060)), draw(st.integers(0, 9)), max(stride, nbytes), nbytes, None)


def named(word: str, regions: Sequence[Region]) -> list[tuple[str, Region]]:
    return [(f"{word}{index}", each) for index, each in enumerate(regions)]


def clash(written: Sequence[Named], read: Sequence[Named]) -> tuple[str, str] | None:
    """The names of one pair, where there is any."""
    return next(((one[0], other[0]) for one, other, _ in clashes(written, read)), None)


class TestClash:
    @given(small_regions(), small_regions())
    def test_two_regions_clash_when_they_share_a_byte(self, a: Region, b: Region) -> None:
        shared = bool(touched(a) & touched(b))
        assert clash([("a", a), ("b", b)], []) in ({("a", "b"), ("b", "a")} if shared else {None})
        assert clash([("a", a)], [("b", b)]) == (("a", "b") if shared else None)
        assert clash([], [("a", a), ("b", b)]) is None

    @given(st.lists(small_regions(), max_size=5), st.lists(small_regions(), max_size=5))
    def test_of_many_one_pair_is_named(self, written: list[Region], read: list[Region]) -> None:
        writes, reads = named("w", written), named("r", read)
        pairs = {
            (name, other)
            for name, each in writes
            for other, another in writes + reads
            if name != other and touched(each) & touched(another)
        }
        found = [((one[0], other[0]), both) for one, other, both in clashes(writes, reads)]
        assert {frozenset(pair) for pair, _ in found} == {frozenset(pair) for pair in pairs}
        assert len(found) == len({frozenset(pair) for pair in pairs})
        assert all(pair[0][0] == "w" and both == (pair[1][0] == "w") for pair, both in found)

    @given(small_regions(), small_regions())
    def test_of_the_same_cells_only_equal_rows_meet(self, a: Region, b: Region) -> None:
        meeting = {
            (i, j)
            for i in range(a.rows)
            for j in range(b.rows)
            if touched(Region(a.address + i * a.stride, 1, a.nbytes, a.nbytes, None))
            & touched(Region(b.address + j * b.stride, 1, b.nbytes, b.nbytes, None))
        }
        if same_cells(a, b):
            assert all(i == j for i, j in meeting)

    @given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 8), st.integers(0, 3), st.data())
    def test_layers_that_alternate_share_nothing(
        self, layers: int, rows: int, nbytes: int, pad: int, data: st.DataObject
    ) -> None:
        step = nbytes + pad
        made = [Region(4096 + layer * step, rows, layers * step, nbytes, None) for layer in range(layers)]
        assert clash(named("w", made), []) is None
        moved = data.draw(st.integers(0, layers - 1))
        late = Region(made[moved].address + pad + 1, rows, layers * step, nbytes, None)
        if rows > 1 and layers > 1:
            assert clash(named("w", [*made[:moved], late, *made[moved + 1 :]]), []) is not None

    def test_a_region_is_met_by_itself(self) -> None:
        one = Region(4096, 3, 16, 8, None)
        assert clash([("w", one)], [("r", one)]) == ("w", "r")

    def test_one_long_row_over_many_short_ones(self) -> None:
        many = Region(4096, 1_000_000, 64, 16, None)
        assert clash([("w", many)], [("r", Region(4096 + 16, 1, 48, 48, None))]) is None
        assert clash([("w", many)], [("r", Region(4096 + 16, 1, 49, 49, None))]) == ("w", "r")
        assert clash([("w", many)], [("r", Region(4096 + 16, 1, 1 << 40, 1 << 40, None))]) == ("w", "r")

    def test_real_memory(self) -> None:
        pool = np.zeros((ROWS, 3, PAGE), np.uint8)
        layers = [region(pool[:, layer], PAGE, "here", writable=True) for layer in range(3)]
        assert clash(named("w", layers[:2]), named("r", layers[2:])) is None
        last = region(pool.reshape(-1, PAGE)[-1:], PAGE, "here", writable=True)
        assert clash(named("w", layers[:2]), [("r", last)]) is None
        assert clash(named("w", layers[2:]), [("r", last)]) == ("w0", "r")
