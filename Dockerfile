# An image with `cwm` for systems without Linux's guards: see docs/docker.md.
#   docker build --build-arg EXTRAS=llm,mujoco -t cwm .

FROM python:3.13-slim AS build
ARG EXTRAS=""
WORKDIR /source
COPY . .
RUN python -m venv /opt/cwm && \
    /opt/cwm/bin/pip install --no-cache-dir --disable-pip-version-check \
      -c constraints.txt ".${EXTRAS:+[$EXTRAS]}"

FROM python:3.13-slim
LABEL org.opencontainers.image.title="cwm" \
      org.opencontainers.image.description="Code world models: synthesize a Python model of an environment, then plan with it" \
      org.opencontainers.image.source="https://github.com/cwm-cli/cwm" \
      org.opencontainers.image.documentation="https://github.com/cwm-cli/cwm/blob/main/docs/docker.md" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 1000 --create-home cwm && install -d -o cwm -g cwm /work
COPY --from=build /opt/cwm /opt/cwm
# Caches belong to the mounted folder: the rest of the container is removed after each command.
ENV PATH=/opt/cwm/bin:$PATH \
    XDG_CACHE_HOME=/work/.cache
USER 1000
WORKDIR /work
VOLUME /work
ENTRYPOINT ["cwm"]
