"""The operator's TOML files: five lines suffice, and every mistake is named."""

import json
from pathlib import Path

import pytest

from models.errors import InvalidModelFile
from models.folder import inside, read_file, read_folder
from models.preprocess import Preprocess
from models.spec import FileWeights, RandomWeights

MINIMAL = 'arch = "timm:resnet18"\nweights = "random"\n'


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_two_lines_suffice(tmp_path: Path) -> None:
    spec = read_file(write(tmp_path, MINIMAL))
    assert spec.name == "mine"
    assert spec.arch == "timm:resnet18"
    assert spec.weights == RandomWeights()
    assert (spec.head, spec.output, spec.labels, spec.preprocess, spec.layer) == ("softmax", None, None, None, None)


def test_every_key(tmp_path: Path) -> None:
    text = f"""
        name = "defects-v2"
        arch = "torchvision:resnet50"
        weights = "runs/best.safetensors"
        sha256 = "{"AB" * 32}"
        head = "sigmoid"
        output = "scores"
        labels = ["scratch", "dent"]
        layer = "layer4"
        memory_format = "contiguous"
        dtype = "bfloat16"
        licence = "proprietary"
        description = "Surface defects."
        [arch_options]
        num_classes = 2
        [preprocess]
        input_size = [320, 256]
        resize = 352
        mean = [0.1, 0.2, 0.3]
        std = [1, 1, 1]
        interpolation = "bicubic"
        fit = "pad"
        fill = [0, 0, 0]
    """
    spec = read_file(write(tmp_path, text))
    assert spec.name == "defects-v2"
    assert spec.weights == FileWeights(name="runs/best.safetensors", folder=tmp_path)
    assert spec.sha256 == "ab" * 32
    assert (spec.head, spec.output, spec.labels) == ("sigmoid", "scores", ("scratch", "dent"))
    assert (spec.layer, spec.memory_format, spec.dtype) == ("layer4", "contiguous", "bfloat16")
    assert spec.arch_options == {"num_classes": 2}
    assert spec.preprocess == Preprocess(
        input_size=(320, 256),
        resize=(352, 352),
        mean=(0.1, 0.2, 0.3),
        std=(1, 1, 1),
        interpolation="bicubic",
        fit="pad",
        fill=(0, 0, 0),
    )


def test_the_folder_appears_in_no_dump(tmp_path: Path) -> None:
    spec = read_file(write(tmp_path, 'arch = "timm:resnet18"\nweights = "a.pth"\n'))
    assert str(tmp_path) not in spec.model_dump_json()
    assert str(tmp_path) not in repr(spec)


def test_labels_from_a_file_one_per_line(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("Größe \r\nzwei Wörter\n", encoding="utf-8")
    spec = read_file(write(tmp_path, MINIMAL + 'labels = "labels.txt"\n'))
    assert spec.labels == ("Größe", "zwei Wörter")


def test_only_the_ends_of_lines_end_labels(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("one\x85two\u2028three\x0cfour\nfive\n\n", encoding="utf-8")
    spec = read_file(write(tmp_path, MINIMAL + 'labels = "labels.txt"\n'))
    assert spec.labels == ("one\x85two\u2028three\x0cfour", "five")


def test_the_mark_that_some_editors_put_before_a_text_is_no_part_of_it(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    (tmp_path / "labels.txt").write_bytes(mark + b"cat\r\ndog\r\n")
    (tmp_path / "mine.toml").write_bytes(mark + f'{MINIMAL}labels = "labels.txt"\n'.encode())
    assert read_file(tmp_path / "mine.toml").labels == ("cat", "dog")


def test_a_folder_gives_its_models_by_name_and_skips_other_files(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "b.toml")
    write(tmp_path, MINIMAL + 'name = "a2"', "a.toml")
    write(tmp_path, "nonsense", ".hidden.toml")
    write(tmp_path, "nonsense", "notes.txt")
    assert list(read_folder(tmp_path)) == ["a2", "b"]


@pytest.mark.parametrize(
    ("text", "key", "complaint"),
    [
        (MINIMAL + 'lables = ["a"]', "lables", "Did you mean 'labels'"),
        (MINIMAL + "[preprocess]\ninput_size = 9\nmeen = 1\nstd = [1,1,1]", "preprocess.mean", "lacks"),
        (
            MINIMAL + "[preprocess]\ninput_size = 9\nmean = [0,0,0]\nstd = [1,1,1]\ncrop_size = 3",
            "preprocess.crop_size",
            "unknown key",
        ),
        (MINIMAL + "[preprocess]\ninput_size = 9\nmean = [0]\nstd = [1,1,1]", "preprocess", "mean has 1 numbers"),
        ('weights = "random"', "arch", "lacks"),
        ('arch = "timm:resnet18"', "weights", "lacks"),
        ('arch = "resnet18"\nweights = "random"', "arch", 'must read "torchvision:NAME"'),
        ('arch = "timm:hf-hub:x/y"\nweights = "random"', "arch", 'must read "torchvision:NAME"'),
        ('arch = "python:os.system"\nweights = "random"', "arch", 'must read "torchvision:NAME"'),
        (MINIMAL + 'head = "softmaxx"', "head", "'softmax', 'sigmoid' or 'binary'"),
        (MINIMAL + 'dtype = "half"', "dtype", "'float32', 'bfloat16' or 'float16'"),
        (MINIMAL + 'labels = ["a", ""]', "labels", "at least 1 character"),
        (MINIMAL + "labels = []", "labels", "there is none"),
        (MINIMAL + f'labels = ["{"x" * 501}"]', "labels", "at most 500 characters"),
        (MINIMAL + 'labels = "absent.txt"', "labels", "cannot be read"),
        (MINIMAL + 'labels = "../labels.txt"', "labels", "inside the models folder"),
        (MINIMAL + f'sha256 = "{"ab" * 32}"', "sha256", "random weights have no checksum"),
        (MINIMAL + 'name = "../x"', "name", "should match pattern"),
        (MINIMAL + 'name = "timm/x"', "name", "should match pattern"),
        (MINIMAL + 'name = ""', "name", "should match pattern"),
        ('arch = "timm:resnet18"\nweights = "a.pth"\nsha256 = "12"', "sha256", "should match pattern"),
        ('arch = "timm:resnet18"\nweights = "model.bin"', "weights", ".safetensors, .pth, .pt"),
        ('arch = "timm:resnet18"\nweights = "Random"', "weights", '"random"'),
        ('arch = "timm:resnet18"\nweights = "/etc/a.pth"', "weights", "inside the models folder"),
        ('arch = "timm:resnet18"\nweights = "../a.pth"', "weights", "inside the models folder"),
        ('arch = "timm:resnet18"\nweights = "a/../../a.pth"', "weights", "inside the models folder"),
        ("arch = ", None, "is not valid TOML"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, key: str | None, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidModelFile) as caught:
        read_file(path)
    assert complaint in str(caught.value)
    assert "'mine.toml'" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert caught.value.extra["key"] == key
    assert caught.value.extra["file"] == "mine.toml"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"one\n\nthree\n", "line 2 of 'labels.txt' is empty"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"", "the file 'labels.txt' is empty"),
        (b"\n \n", "the file 'labels.txt' is empty"),
        (b"one\n" + b"x" * 501, "line 2 of 'labels.txt' has more than 500 characters"),
    ],
)
def test_a_label_file_with_a_mistake_is_named(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "labels.txt").write_bytes(content)
    with pytest.raises(InvalidModelFile, match=complaint):
        read_file(write(tmp_path, MINIMAL + 'labels = "labels.txt"\n'))


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidModelFile, match="is not valid TOML"):
        read_file(path)


def test_a_file_whose_name_is_no_model_name_needs_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelFile, match="set `name`"):
        read_file(write(tmp_path, MINIMAL, "my model.toml"))


def test_two_files_may_not_share_a_name(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "a.toml")
    write(tmp_path, MINIMAL + 'name = "a"', "b.toml")
    with pytest.raises(InvalidModelFile, match=r"'b.toml'.*already taken by 'a.toml'"):
        read_folder(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelFile, match="'nowhere' does not exist") as caught:
        read_folder(tmp_path / "nowhere")
    assert str(tmp_path) not in str(caught.value)


def test_a_link_may_lead_around_the_folder_but_not_out_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "..data").mkdir(parents=True)  # as Kubernetes mounts a ConfigMap
    (folder / "..data" / "a.pth").touch()
    (folder / "a.pth").symlink_to("..data/a.pth")
    (tmp_path / "secret.pth").touch()
    (folder / "b.pth").symlink_to("../secret.pth")
    assert inside(folder, "a.pth") == folder / "a.pth"
    with pytest.raises(ValueError, match="not a link that leads out of it"):
        inside(folder, "b.pth")


def test_a_model_file_may_be_a_link_within_the_folder_but_none_out_of_it(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "..data").mkdir(parents=True)  # as Kubernetes mounts a ConfigMap
    write(folder / "..data", MINIMAL, "a.toml")
    (folder / "a.toml").symlink_to("..data/a.toml")
    assert list(read_folder(folder)) == ["a"]
    write(tmp_path, MINIMAL, "elsewhere.toml")
    (folder / "b.toml").symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(
        InvalidModelFile, match=r"'b\.toml' must be a file inside the models folder, not a link"
    ) as caught:
        read_folder(folder)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("name", ["/etc/a.pth", "../a.pth", "x/../../a.pth", "//host/a.pth", "a\u0000.pth"])
@pytest.mark.parametrize("key", ["weights", "labels"])
def test_what_a_model_file_names_lies_in_its_folder(tmp_path: Path, key: str, name: str) -> None:
    keys = {"arch": "timm:resnet18", "weights": "random", key: name}
    text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    with pytest.raises(InvalidModelFile, match=f"key '{key}': must name a file inside the models folder"):
        read_file(write(tmp_path, text))
