"""The server that people write today: a Flask view around pytorch-grad-cam, run by gunicorn with two sync workers.

    gunicorn --chdir benchmarks/peers --workers 2 flask_gradcam:app

It is as a good engineer writes it in an afternoon, from the manuals of its parts: the network and the hooks are set
up once per worker, the picture is handled by Pillow and torchvision, the overlay is made by the library's own function
and has the picture's size. Torch keeps its default number of threads. The network and its weights are HeatLens's own.
"""

from io import BytesIO

import cv2
import numpy as np
from flask import Flask, Response, request, send_file
from PIL import Image, UnidentifiedImageError
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.image import show_cam_on_image
from torchvision import transforms

from models import DEFAULT_MODEL, Registry
from models.sources import locate, network

LAYER = "conv_head"
"""The last convolution, as pytorch-grad-cam's manual advises."""


def _cam() -> GradCAM:
    spec = Registry(None).get(DEFAULT_MODEL)
    model, _ = network(spec, locate(spec, allow_download=False))
    return GradCAM(model=model.eval(), target_layers=[model.get_submodule(LAYER)])


app = Flask(__name__)
cam = _cam()
preprocess = transforms.Compose(
    [
        transforms.Resize((224, 224), interpolation=transforms.InterpolationMode.BICUBIC),
        transforms.ToTensor(),
        transforms.Normalize([0.5, 0.5, 0.5], [0.5, 0.5, 0.5]),
    ]
)


@app.post("/explain")
def explain() -> Response | tuple[str, int]:
    """Return the overlay of the most probable class; the picture is the raw body, or the form's part `image`."""
    uploaded = request.files.get("image")
    data = uploaded.read() if uploaded else request.get_data()
    try:
        image = Image.open(BytesIO(data)).convert("RGB")
    except UnidentifiedImageError:
        return "not a picture", 400
    mask = cam(input_tensor=preprocess(image).unsqueeze(0), targets=None)[0]
    pixels = np.asarray(image, np.float32) / 255
    overlay = show_cam_on_image(pixels, cv2.resize(mask, image.size), use_rgb=True)
    answer = BytesIO()
    Image.fromarray(overlay).save(answer, "JPEG", quality=90)
    answer.seek(0)
    return send_file(answer, mimetype="image/jpeg")
