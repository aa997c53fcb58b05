# An engine: torch with CUDA, and the C compiler that Triton needs where a kernel is not in its cache.
#   docker build -f deploy/engine.Dockerfile -t tenfold/engine:0.1.0 .
# The driver comes from the node; CUDA's libraries come with torch's wheels. TORCH is pinned here
# because constraints.txt leaves it to whoever installs.
ARG BASE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ARG TORCH=2.13.0
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_RETRIES=10 PIP_DEFAULT_TIMEOUT=60
RUN python3 -m venv /opt/tenfold && python3 -m venv /opt/build
WORKDIR /src
COPY constraints.txt deploy/build.requirements.txt ./
RUN --mount=type=secret,id=ca,target=/run/secrets/ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    /opt/build/bin/python -m pip install --require-hashes -r build.requirements.txt && \
    /opt/tenfold/bin/python -m pip install "torch==${TORCH}"
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY app app
COPY engine engine
COPY lora lora
COPY kernels kernels
COPY migrations migrations
RUN --mount=type=secret,id=ca,target=/run/secrets/ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    /opt/build/bin/python -m hatchling build -t wheel && \
    set -- dist/tenfold-*.whl && \
    /opt/tenfold/bin/python -m pip install -c constraints.txt "${1}[tracing]" && \
    /opt/build/bin/cyclonedx-py environment /opt/tenfold/bin/python -o /opt/tenfold/sbom.cdx.json && \
    /opt/tenfold/bin/python -m compileall -q /opt/tenfold

FROM ${BASE}
LABEL org.opencontainers.image.title="tenfold engine" \
      org.opencontainers.image.licenses="Apache-2.0"
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install -y --no-install-recommends gcc libc6-dev && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/tenfold /opt/tenfold
ENV PATH=/opt/tenfold/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=tenfold \
    OMP_WAIT_POLICY=passive TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_CACHE_DIR=/tmp/inductor \
    TENFOLD_HEALTH_PORT=8080 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /tmp
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=1200s \
    CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ['TENFOLD_HEALTH_PORT']}/livez\", timeout=4)"]
ENTRYPOINT ["tenfold"]
CMD ["engine"]
