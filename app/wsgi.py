"""What gunicorn calls in each worker, after the fork: `app.wsgi:application()`."""

import atexit
import logging
import sys
import warnings

import cv2
from flask import Flask

from app import create_app
from app.config import load_settings
from app.errors import KNOWN_ERRORS

_BOOT_FAILED = 3  # gunicorn's own exit code for "do not respawn"


def application() -> Flask:
    """Create the app and load its models; the worker takes no connection before it can answer."""
    settings = load_settings()
    logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    warnings.filterwarnings("ignore", module=r"PIL\.")  # quotes odd tags of uploads
    cv2.setNumThreads(1)  # request threads and workers are parallel enough
    try:
        app = create_app(settings)
        service = app.extensions["heatlens"]
        service.start()
    except KNOWN_ERRORS as error:
        logging.getLogger(__name__).critical(
            "cannot start (HEATLENS_DEFAULT_MODEL, HEATLENS_MODELS, HEATLENS_MODELS_DIR): %s", error
        )
        sys.exit(_BOOT_FAILED)
    atexit.register(service.close)
    return app
