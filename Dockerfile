# CPU:           docker build -t heatlens .
# NVIDIA GPUs:   docker build -t heatlens:cuda --build-arg TORCH_VARIANT=cuda .
# TORCH_VARIANT is cuda, for the wheel of pip's own index, or a folder of https://download.pytorch.org/whl: cpu, cu126, ...
ARG PYTHON_VERSION=3.12


FROM python:${PYTHON_VERSION}-slim-bookworm AS wheel

WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .


FROM python:${PYTHON_VERSION}-slim-bookworm

LABEL org.opencontainers.image.title="HeatLens" \
      org.opencontainers.image.description="A self-hosted service that shows why an image model decided what it decided" \
      org.opencontainers.image.licenses="Apache-2.0"

# A fixed number: volumes keep their owner across images, and Kubernetes can see that it is not root.
RUN groupadd --gid 10001 heatlens \
 && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /data --shell /usr/sbin/nologin heatlens \
 && install --directory --owner=10001 --group=10001 /data /data/torch /data/huggingface \
 && install --directory /models

ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore

# Largest and most stable first: PyTorch, the other dependencies, the project itself.
WORKDIR /build
ARG TORCH_VARIANT=cpu
COPY constraints.txt ./
# The last command adds what PyTorch needs, the CUDA libraries among them, and leaves a wheel that is there as it is.
RUN if [ "${TORCH_VARIANT}" != cuda ]; then \
      pip install --constraint constraints.txt --no-deps \
        --index-url "https://download.pytorch.org/whl/${TORCH_VARIANT}" torch torchvision; \
    fi \
 && pip install --constraint constraints.txt torch torchvision

COPY pyproject.toml ./
# With the extra s3, since machines that share jobs share a bucket.
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; print(*p['dependencies'], *p['optional-dependencies']['s3'], sep='\n')" > requirements.txt \
 && pip install --constraint constraints.txt --requirement requirements.txt

# What matplotlib finds out about fonts, so that the first chart does not wait for it. It passes over a folder that it
# cannot write to.
ENV MPLCONFIGDIR=/var/cache/matplotlib
RUN python -c "import matplotlib.font_manager" \
 && chown --recursive 10001:10001 "${MPLCONFIGDIR}"

COPY --from=wheel /wheels /build/wheels
RUN pip install --no-deps wheels/*.whl

# /data: the jobs and their results, and the weights that torchvision and timm download. /models: the operator's own models, one TOML file each; read only.
ENV HEATLENS_HOST=0.0.0.0 \
    HEATLENS_PORT=8000 \
    HEATLENS_MODELS_DIR=/models \
    HEATLENS_DATA_DIR=/data \
    TORCH_HOME=/data/torch \
    HF_HOME=/data/huggingface \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME ["/data"]
WORKDIR /data
USER 10001:10001

# It listens on all addresses, so it starts with a key alone: docker run ... heatlens keys create NAME --scope explain,jobs
# with the same volume; or with HEATLENS_INSECURE=true, where nobody else reaches it. With --read-only: --tmpfs /tmp.
EXPOSE 8000
# http.client, since urllib would go through the proxy that HTTP_PROXY names.
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ['HEATLENS_PORT']), timeout=4); c.request('GET', '/readyz'); sys.exit(c.getresponse().status != 200)"]

ENTRYPOINT ["heatlens"]
CMD ["serve"]
