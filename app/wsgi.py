"""What gunicorn calls in each worker, after the fork: `app.wsgi:application()`."""

import atexit
import logging
import os
import signal
import sys
import warnings

import cv2
from flask import Flask

from app import create_app, logs, tracing
from app.config import BOOT_FAILED, Settings, SettingsError, load_settings
from app.engine import DeviceLost
from app.errors import DatabaseTooNew, DeviceUnavailable, JobsUnavailable, OutOfSpace
from app.jobs.database import Database
from app.known_errors import KNOWN_ERRORS


def application() -> Flask:
    """Create the app and load its models; the worker takes no connection before it can answer."""
    settings = load_settings()
    logs.configure(settings.log_level, settings.log_format)
    warnings.filterwarnings("ignore", module=r"PIL\.")  # quotes odd tags of uploads
    cv2.setNumThreads(1)  # request threads and workers are parallel enough
    try:
        app = create_app(settings, on_device_lost=_be_replaced)
        if settings.tracing:
            tracing.start(app)
        service = app.extensions["heatlens"]
        _prepare_jobs(app.extensions["heatlens_jobs"].database, settings)
        service.start()
    except DeviceLost:  # it was logged; no code that tells gunicorn to give up, for another process may succeed
        sys.exit(1)
    except (SettingsError, DeviceUnavailable, DatabaseTooNew) as error:
        logging.getLogger(__name__).critical("cannot start: %s", error)
        sys.exit(BOOT_FAILED)
    except KNOWN_ERRORS as error:
        logging.getLogger(__name__).critical(
            "cannot start with these models (HEATLENS_DEFAULT_MODEL, HEATLENS_MODELS, HEATLENS_MODELS_DIR): %s", error
        )
        sys.exit(BOOT_FAILED)
    atexit.register(service.close)
    return app


def _prepare_jobs(database: Database, settings: Settings) -> None:
    """Go on where the jobs' database does not answer, which may come later than this process.

    The API keys lie there, too: nobody is let in before it answered once, unless the server is insecure.
    """
    try:
        database.migrate()
    except (JobsUnavailable, OutOfSpace) as error:
        closed = "no jobs are taken" if settings.insecure else "no jobs are taken, and nobody is let in,"
        logging.getLogger(__name__).warning("%s until the jobs' database answers: %s", closed, error)


def _be_replaced() -> None:
    """End this worker as gunicorn would: it answers whom it has, and the master starts another in its place."""
    os.kill(os.getpid(), signal.SIGTERM)
