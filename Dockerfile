# The command line in a container:
#   docker build -t flopcast .
#   docker run --rm -v "$PWD:/work" flopcast estimate scenario.yaml
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE ./
COPY docs/licences.md docs/
COPY sim sim
COPY calibration calibration
COPY validation validation
COPY scenarios scenarios
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(ls /wheels/*.whl)[mcp]" && rm -r /wheels && useradd --create-home flopcast
USER flopcast
WORKDIR /work
ENTRYPOINT ["flopcast"]
CMD ["--help"]
