package importer

// langchain is messages of LangChain and LangGraph: as dictionaries, as langchain_core.load dumps them, or in the
// state of a graph.
var langchain = &format{
	name: "langchain", about: "messages of LangChain and LangGraph, as dictionaries or dumps",
	line: func(f *fields) bool {
		return langchainRole(f) != "" && (f.has("data") || f.has("kwargs") || f.has("content")) && !f.has("uuid") && !f.has("sessionId")
	},
	whole: func(f *fields) bool {
		list := f.get("messages", "values.messages", "kwargs.messages")
		first := list.Get("0")
		return list.IsArray() && first.IsObject() && langchainRole(parseFields([]byte(first.Raw))) != ""
	},
	items: "messages,values.messages,kwargs.messages",
	field: places{
		time:  "data.additional_kwargs.timestamp,timestamp",
		model: "data.response_metadata.model_name,kwargs.response_metadata.model_name,response_metadata.model_name",
		usage: "data.usage_metadata,kwargs.usage_metadata,usage_metadata",
	},
	of: places{session: "config.configurable.thread_id,thread_id", time: "created_at"},
	read: func(f *fields, e *entry) {
		e.say(langchainRole(f))
	},
}

// langchainRole returns who wrote a message, or "" if it is not one of LangChain.
func langchainRole(f *fields) string {
	switch kind := f.text("data.type", "kwargs.type", "type"); kind {
	case "human", "ai", "tool", "system", "function":
		return kind
	case "AIMessageChunk":
		return "ai"
	}
	if f.has("lc", "kwargs") {
		switch f.get("id.@reverse.0").Str {
		case "HumanMessage":
			return "human"
		case "AIMessage", "AIMessageChunk":
			return "ai"
		case "ToolMessage":
			return "tool"
		case "SystemMessage":
			return "system"
		}
	}
	return ""
}
