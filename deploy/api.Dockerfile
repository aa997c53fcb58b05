# The API, the worker, migrations and the command line: everything that computes nothing.
#   docker build -f deploy/api.Dockerfile -t tenfold/api:0.1.0 .
# BASE has Python 3.11 to 3.13 with venv. A private certificate authority for pip goes into the secret
# `ca`. Every package is locked with its hash.
ARG BASE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_RETRIES=10 PIP_DEFAULT_TIMEOUT=60 PYTHONDONTWRITEBYTECODE=1
RUN python3 -m venv /opt/tenfold && python3 -m venv /opt/build
WORKDIR /src
COPY deploy/api.requirements.txt deploy/build.requirements.txt deploy/
RUN --mount=type=secret,id=ca,target=/run/secrets/ca \
    if [ -s /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi; \
    /opt/tenfold/bin/python -m pip install --require-hashes -r deploy/api.requirements.txt && \
    /opt/build/bin/python -m pip install --require-hashes -r deploy/build.requirements.txt
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY app app
COPY engine engine
COPY lora lora
COPY kernels kernels
COPY migrations migrations
RUN /opt/build/bin/python -m hatchling build -t wheel && \
    /opt/tenfold/bin/python -m pip install --no-deps dist/tenfold-*.whl && \
    /opt/build/bin/cyclonedx-py environment /opt/tenfold/bin/python -o /opt/tenfold/sbom.cdx.json && \
    /opt/tenfold/bin/python -m compileall -q /opt/tenfold && \
    rm -rf /opt/tenfold/bin/pip* /opt/tenfold/lib/python3*/site-packages/pip*

FROM ${BASE}
LABEL org.opencontainers.image.title="tenfold api" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/tenfold /opt/tenfold
ENV PATH=/opt/tenfold/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp USER=tenfold
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000 8001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python3", "-c", "import os, urllib.request as r; r.urlopen(f\"http://127.0.0.1:{os.environ.get('TENFOLD_HEALTH_PORT') or os.environ.get('TENFOLD_PORT', 8000)}/livez\", timeout=4)"]
ENTRYPOINT ["tenfold"]
CMD ["api"]
