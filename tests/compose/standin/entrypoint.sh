# As in the official image: a variable such as discovery.type=single-node becomes a setting of the node.
options=()
while IFS='=' read -r name value; do
  if [[ "$name" =~ ^[a-z0-9_]+\.[a-z0-9_.]+$ && -n "$value" ]]; then
    options+=("-E$name=$value")
  fi
done < <(env)
exec opensearch "${options[@]}"
