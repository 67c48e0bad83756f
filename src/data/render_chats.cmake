# Sets LLAMESH_RENDER_CHATS to a source with the Python program that renders chat templates, so that it
# needs no file where it is installed.
set(LLAMESH_RENDER_CHATS ${CMAKE_CURRENT_BINARY_DIR}/render_chats.cpp)
file(READ ${CMAKE_CURRENT_LIST_DIR}/render_chats.py render_chats)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/render_chats.py)
configure_file(${CMAKE_CURRENT_LIST_DIR}/render_chats.cpp.in ${LLAMESH_RENDER_CHATS} @ONLY)
