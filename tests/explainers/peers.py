"""Second opinions, brought to our terms."""

import cv2
import numpy as np


def as_pytorch_grad_cam_shows_it(raw: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """ReLU; stretched to [0, 1]; resized; stretched again after the mean over the one layer."""

    def stretched(image: np.ndarray) -> np.ndarray:
        image = image - image.min()
        return image / (1e-7 + image.max())

    assert raw.max() > 0
    return stretched(cv2.resize(stretched(np.maximum(raw, 0)), size))
