"""Images and arrays: the pixels of files made from the specification, and of Pillow's."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from sample_files import chunk, idx_pair, picture, pictures, png, two_classes

from ibpwf.data import Layout, read_examples
from ibpwf.errors import DataError, InputError


def pixels(image: np.ndarray) -> np.ndarray:
    return image.transpose(2, 0, 1).astype(np.float32) / np.float32(255)


@pytest.mark.parametrize("channels", [1, 3])
def test_folders_are_classes_and_images_are_read_by_name(channels: int, tmp_path: Path) -> None:
    two_classes(tmp_path, channels)
    for junk in (".DS_Store", "Thumbs.db", "cat/.hidden.png", "dog/desktop.ini"):
        (tmp_path / junk).write_bytes(b"junk")
    (tmp_path / "__MACOSX").mkdir()
    examples = read_examples(tmp_path)
    np.testing.assert_array_equal(examples.x, [pixels(picture(channels, seed=seed)) for seed in range(4)])
    assert examples.y == ["cat", "cat", "dog", "dog"]
    assert examples.layout == Layout("images", (channels, 4, 5), pixels="bytes")
    assert examples.where(3).file == str(tmp_path / "dog" / "1.png")
    assert examples.feature_names is None


def test_a_folder_of_images_or_one_image_can_be_predicted(tmp_path: Path) -> None:
    layout = read_examples(two_classes(tmp_path)).layout
    several = read_examples(tmp_path / "dog", like=layout)
    assert several.y is None
    assert len(several) == 2
    one = read_examples(tmp_path / "dog" / "1.png", like=layout)
    np.testing.assert_array_equal(one.x, several.x[1:])
    without = read_examples(tmp_path, like=layout, with_labels=False)
    assert without.y is None
    assert len(without) == 4


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    two_classes(tmp_path)
    (tmp_path / "dog" / "2.png").symlink_to(tmp_path / "dog" / "0.png")
    x = read_examples(tmp_path).x
    np.testing.assert_array_equal(x[4], x[2])


def test_later_images_must_have_the_size_and_colors_of_earlier_ones(tmp_path: Path) -> None:
    layout = read_examples(two_classes(tmp_path / "first")).layout
    small = pictures(tmp_path / "small", cat=[png(picture(height=3))])
    with pytest.raises(DataError, match=r"cat/0\.png .*3×5.*4×5"):
        read_examples(small, like=layout)
    with pytest.raises(InputError, match=r"size .*3×5.*4×5"):
        read_examples(small, like=layout, size=(3, 5))
    grey = pictures(tmp_path / "grey", cat=[png(picture(1))])
    with pytest.raises(DataError, match=r"cat/0\.png .*channels=3"):
        read_examples(grey, like=layout)


def test_photos_of_many_sizes_are_advised_a_size_that_can_be_learnt_from(tmp_path: Path) -> None:
    large = pictures(tmp_path, cat=[png(picture(1, 300, 200)), png(picture(1, 200, 300))], dog=[png(picture(1))])
    with pytest.raises(DataError, match=r"cat/1\.png .*200×300.*size=\(128, 128\)"):
        read_examples(large)
    assert read_examples(large, size=(128, 128)).x.shape == (3, 1, 128, 128)


def test_images_are_resized_on_request_and_then_always(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    made = picture(height=8, width=6)
    folder = pictures(tmp_path / "first", cat=[png(made), png(picture(height=4, width=6))], dog=[png(picture())])
    examples = read_examples(folder, size=(4, 6))
    expected = np.asarray(image.fromarray(made).resize((6, 4), image.Resampling.BILINEAR))
    np.testing.assert_array_equal(examples.x[0], pixels(expected))
    assert examples.layout == Layout("images", (3, 4, 6), resize=True, pixels="bytes")
    later = read_examples(pictures(tmp_path / "later", cat=[png(made)]), like=examples.layout)
    np.testing.assert_array_equal(later.x[0], examples.x[0])


def test_images_are_made_grey_or_colored_on_request(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "first", cat=[png(picture(1))], dog=[png(picture(3))])
    colored = read_examples(folder, channels=3)
    np.testing.assert_array_equal(colored.x[0], np.repeat(pixels(picture(1)), 3, axis=0))
    assert colored.layout.convert
    grey = read_examples(folder, channels=1)
    np.testing.assert_array_equal(grey.x[0], pixels(picture(1)))
    later = read_examples(pictures(tmp_path / "later", cat=[png(picture(3))]), like=grey.layout)
    np.testing.assert_array_equal(later.x[0], grey.x[1])


def test_grey_is_the_brightness_of_the_colors(tmp_path: Path) -> None:
    made = picture(3, 40, 50)
    (tmp_path / "a.png").write_bytes(png(made))
    read = read_examples(tmp_path / "a.png", with_labels=False, channels=1)
    brightness = made @ np.array([0.299, 0.587, 0.114])  # ITU-R 601
    np.testing.assert_allclose(read.x[0, 0] * 255, brightness, atol=0.51)


def test_palettes_full_opacity_and_other_formats_are_read_with_pillow(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    palette = picture(3, 1, 4).reshape(4, 3)
    indices = picture(1) % 4
    opaque = np.concatenate([picture(3), np.full((4, 5, 1), 255, np.uint8)], axis=2)
    folder = pictures(
        tmp_path,
        cat=[png(indices, color=3, between=chunk(b"PLTE", palette.tobytes())), png(opaque)],
        dog=[png(picture(3, seed=7))],
    )
    for ending in ("webp", "bmp", "tiff"):
        image.fromarray(picture(3)).save(folder / "dog" / f"1.{ending}", lossless=True)
    x = read_examples(folder).x
    np.testing.assert_array_equal(x[0], pixels(palette[indices[:, :, 0]]))
    np.testing.assert_array_equal(x[[1, 3, 4, 5]], [pixels(picture(3))] * 4)


def test_pictures_of_phones_stand_upright(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    lying = image.fromarray(np.repeat(np.repeat(picture(3, 2, 3), 16, 0), 16, 1))
    turned = image.Exif()
    turned[0x0112] = 6  # the camera was turned: the top is on the right
    lying.save(tmp_path / "a.jpg", exif=turned, quality=100)
    assert read_examples(tmp_path / "a.jpg", with_labels=False).layout.shape == (3, 48, 32)


def test_a_color_that_counts_as_transparent_is_seen(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    first = b"".join(b"\0" + bytes([value]) for value in picture(3)[0, 0].tolist())
    folder = pictures(tmp_path, cat=[png(picture(3), between=chunk(b"tRNS", first))])
    with pytest.raises(DataError, match=r"cat/0\.png .*transparent"):
        read_examples(folder)


# IDX and NPZ


def test_idx_pairs_are_read_gzipped_or_not_and_by_their_folder(tmp_path: Path) -> None:
    path = idx_pair(tmp_path)
    expected = np.random.default_rng(0).integers(0, 256, (6, 1, 4, 5)).astype(np.float32) / np.float32(255)
    for given in (path, tmp_path):
        examples = read_examples(given)
        np.testing.assert_array_equal(examples.x, expected)
        assert examples.y == ["0", "1", "2", "0", "1", "2"]
    for part in (path, tmp_path / "train-labels-idx1-ubyte"):
        part.with_name(part.name + ".gz").write_bytes(gzip.compress(part.read_bytes()))
        part.unlink()
    zipped = read_examples(path.with_name(path.name + ".gz"))
    np.testing.assert_array_equal(zipped.x, expected)
    assert str(zipped.where(4)) == f"{path}.gz, example 4"
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    assert read_examples(tmp_path, like=zipped.layout).y is None


def test_images_of_idx_and_of_png_files_are_alike(tmp_path: Path) -> None:
    learned = read_examples(idx_pair(tmp_path / "idx"))
    image = np.random.default_rng(0).integers(0, 256, (6, 4, 5)).astype(np.uint8)[2, :, :, None]
    (tmp_path / "2.png").write_bytes(png(image))
    np.testing.assert_array_equal(read_examples(tmp_path / "2.png", like=learned.layout).x, learned.x[2:3])


@pytest.mark.parametrize("names", [("x", "y"), ("X", "y"), ("images", "labels"), ("data", "target")])
def test_npz_arrays_are_found_by_their_names(names: tuple[str, str], tmp_path: Path) -> None:
    x, y = np.arange(12).reshape(4, 3), np.array(["u", "v", "u", "v"])
    np.savez_compressed(tmp_path / "a.npz", **{names[0]: x, names[1]: y, "unrelated": y})
    examples = read_examples(tmp_path / "a.npz")
    np.testing.assert_array_equal(examples.x, x)
    assert examples.y == ["u", "v", "u", "v"]
    assert examples.layout == Layout("arrays", (3,))
    np.savez(tmp_path / "b.npz", **{names[0]: x})
    assert read_examples(tmp_path / "b.npz", like=examples.layout).y is None
    with pytest.raises(InputError, match=r"b\.npz"):
        read_examples(tmp_path / "b.npz")


def test_npz_labels_can_be_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((2, 3)), kind=np.array([4.0, 5.0]), color=np.array([b"r", b"g"]))
    assert read_examples(tmp_path / "a.npz", label="kind").y == ["4", "5"]
    assert read_examples(tmp_path / "a.npz", label="color").y == ["r", "g"]


@pytest.mark.parametrize("shape", [(2, 4, 5), (2, 1, 4, 5), (2, 4, 5, 1)])
def test_images_in_npz_files_get_their_channel_first_and_bytes_become_fractions(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    made = np.stack([picture(1, seed=0), picture(1, seed=1)])
    expected = [pixels(image) for image in made]
    np.savez(tmp_path / "a.npz", x=np.asfortranarray(made.reshape(shape)), y=[0, 1])
    np.testing.assert_array_equal(read_examples(tmp_path / "a.npz").x, expected)
    floats = made.reshape(shape).astype(np.float64)
    np.savez(tmp_path / "b.npz", x=floats, y=[0, 1])
    np.testing.assert_array_equal(read_examples(tmp_path / "b.npz").x, floats.reshape(2, 1, 4, 5))


def test_arrays_of_another_shape_than_earlier_ones_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((2, 4)))
    with pytest.raises(InputError, match=r"a\.npz .*4.*3"):
        read_examples(tmp_path / "a.npz", like=Layout("arrays", (3,)))
